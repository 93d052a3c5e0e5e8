// The checks that every row of the catalogue gets. Each returns what is wrong, or nothing.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>

#include "autograd/gradcheck_case.h"
#include "autograd/ops.h"
#include "core/parallel.h"
#include "core/random.h"

namespace tapestry {
namespace {

struct Run {
  std::vector<Tensor> outputs;
  std::vector<Tensor> gradients;  // of the inputs, then of the parameters
};

std::vector<NamedParameter> parameters_of(const GradcheckCase& c) {
  return c.module ? parameters(*c.module) : std::vector<NamedParameter>{};
}

// The relative distance of neighbours.
double last_place(DType dtype) { return dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : 0x1p-23; }

// Every element moved up or down by one unit in the last place of `dtype`.
void move_by_last_place(Tensor& t, DType dtype, std::uint64_t stream) {
  const RandomKey key{22, stream};
  double* x = t.mutable_data<double>();
  for (std::int64_t i = 0; i < t.numel(); ++i) x[i] *= 1 + (key.below(i, 2) ? 1 : -1) * last_place(dtype);
}

// What backward starts from: the same normal values, rounded to a type and moved by its last place if asked.
struct Cotangent {
  DType dtype = DType::f64;
  bool moved = false;
};

Tensor cotangent_for(const std::vector<Var>& outputs, Cotangent how) {
  std::int64_t size = 0;
  for (const Var& y : outputs) size += y.numel();
  Tensor cotangent = empty({size}, DType::f64);
  fill_normal(cotangent, 0, 1, RandomKey{21, 0});
  cotangent = cotangent.to(how.dtype).to(DType::f64);
  if (how.moved) move_by_last_place(cotangent, how.dtype, 0);
  return cotangent;
}

// One forward and backward pass; `change` may replace what the function gets for the watched inputs. Gradient number
// `begun` holds ones already when the function's backward comes.
template <class Change>
Run run(const GradcheckCase& c, const std::vector<Tensor>& inputs, Change change, Cotangent cotangent = {},
        std::optional<std::size_t> begun = {}) {
  Tape tape;
  if (c.module) zero_grad(*c.module);
  std::vector<Var> watched;
  for (const Tensor& t : inputs) watched.push_back(tape.watch(t));
  std::vector<Var> x = watched;
  change(x);
  const std::vector<Var> outputs = c.function(x);
  Var loss = inner_product(outputs, cotangent_for(outputs, cotangent));
  if (begun) {
    const Var used_again =
        *begun < watched.size() ? watched[*begun] : *parameters_of(c)[*begun - watched.size()].parameter;
    loss = loss + sum(used_again);
  }
  if (loss.tracked()) tape.backward(loss);
  Run result;
  for (const Var& y : outputs) result.outputs.push_back(y.value());
  for (const Var& v : watched) result.gradients.push_back(tape.grad(v));
  for (const NamedParameter& p : parameters_of(c))
    result.gradients.push_back(p.parameter->has_grad() ? p.parameter->grad().clone()
                                                       : zeros_like(p.parameter->value()));
  return result;
}
Run run(const GradcheckCase& c, const std::vector<Tensor>& inputs, Cotangent cotangent = {}) {
  return run(
      c, inputs, [](std::vector<Var>&) {}, cotangent);
}

std::string gradient_name(const GradcheckCase& c, std::size_t index) {
  if (index < c.inputs.size()) return text_of("the gradient of input ", index);
  return text_of("the gradient of ", parameters_of(c)[index - c.inputs.size()].name);
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

double largest(const Tensor& t) {
  double result = 0;
  for (std::int64_t i = 0; i < t.numel(); ++i) result = std::max(result, std::abs(t.at(i)));
  return result;
}

// The largest |a - b|; infinite if one of the two is NaN where the other is not, or if shapes differ.
double distance(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return std::numeric_limits<double>::infinity();
  double result = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double difference = std::abs(a.at(i) - b.at(i));
    if (std::isnan(difference) && std::isnan(a.at(i)) != std::isnan(b.at(i)))
      return std::numeric_limits<double>::infinity();
    result = std::max(result, difference);
  }
  return result;
}

std::string compare_bits(const GradcheckCase& c, const Run& a, const Run& b, std::string_view when,
                         std::optional<std::size_t> ignored = {}) {
  for (std::size_t i = 0; i < a.outputs.size(); ++i)
    if (!same_bits(a.outputs[i], b.outputs[i]))
      return text_of("output ", i, " differs ", when, ", by up to ", number(distance(a.outputs[i], b.outputs[i])));
  for (std::size_t i = 0; i < a.gradients.size(); ++i)
    if (i != ignored && !same_bits(a.gradients[i], b.gradients[i]))
      return text_of(gradient_name(c, i), " differs ", when, ", by up to ",
                     number(distance(a.gradients[i], b.gradients[i])));
  return {};
}

// Blocks that the pool hands out next hold NaN, so reading what was never written shows.
void poison_free_memory(const GradcheckCase& c, const Run& sizes) {
  std::vector<std::int64_t> bytes;
  for (std::int64_t b = 64; b <= 8192; b *= 2) bytes.push_back(b);
  for (const std::vector<Tensor>* group : {&c.inputs, &sizes.outputs, &sizes.gradients})
    for (const Tensor& t : *group) bytes.push_back(t.bytes());
  std::vector<Storage> blocks;
  for (std::int64_t b : bytes) {
    for (int copies = 0; copies < 4 && b > 0; ++copies) {
      blocks.emplace_back(b);
      std::memset(blocks.back().data(), 0xff, static_cast<std::size_t>(b));
    }
  }
}

std::string check_gradient(const GradcheckCase& c, GradcheckCaseResult& result) {
  result.report = gradcheck(c);
  result.gradient_error = result.report.worst.error();
  return result.report.passed() ? std::string() : result.report.text();
}

std::string check_memory(const GradcheckCase& c) {
  const Run reference = run(c, c.inputs);
  poison_free_memory(c, reference);
  return compare_bits(c, reference, run(c, c.inputs), "when free memory holds NaN");
}

// A Parameter that is a constant while this lives.
class FreezeScope {
 public:
  explicit FreezeScope(Parameter& parameter) : parameter_(parameter) { parameter.set_trainable(false); }
  ~FreezeScope() { parameter_.set_trainable(true); }
  FreezeScope(const FreezeScope&) = delete;
  FreezeScope& operator=(const FreezeScope&) = delete;

 private:
  Parameter& parameter_;
};

std::string check_untracked(const GradcheckCase& c) {
  const Run reference = run(c, c.inputs);
  auto compare = [&](const Run& got, std::size_t i, const std::string& name, const char* state) -> std::string {
    const std::string problem = compare_bits(c, reference, got, text_of("when ", name, " is ", state), i);
    if (!problem.empty() || largest(got.gradients[i]) == 0) return problem;
    return text_of(name, " is ", state, " and yet got a gradient");
  };
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const Run got = run(c, c.inputs, [&](std::vector<Var>& x) { x[i] = x[i].detach(); });
    const std::string problem = compare(got, i, text_of("input ", i), "a constant");
    if (!problem.empty()) return problem;
  }
  const std::vector<NamedParameter> all = parameters_of(c);
  for (std::size_t p = 0; p < all.size(); ++p) {
    if (!all[p].parameter->trainable()) continue;
    const FreezeScope frozen(*all[p].parameter);
    const std::string problem = compare(run(c, c.inputs), c.inputs.size() + p, all[p].name, "frozen");
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string check_accumulation(const GradcheckCase& c) {
  const Run reference = run(c, c.inputs);
  for (std::size_t i = 0; i < reference.gradients.size(); ++i) {
    if (i >= c.inputs.size() && !parameters_of(c)[i - c.inputs.size()].parameter->trainable()) continue;
    const Run got = run(
        c, c.inputs, [](std::vector<Var>&) {}, {}, i);
    const std::string when = text_of("when ", gradient_name(c, i), " is added to what is there");
    const std::string problem = compare_bits(c, reference, got, when, i);
    if (!problem.empty()) return problem;
    const Tensor& alone = reference.gradients[i];
    const double error = distance(got.gradients[i], add_scalar(alone, 1).value());
    if (!(error <= 1e-12 * (1 + largest(alone))))
      return text_of(gradient_name(c, i), " is off by ", number(error), " when it is added to what is there");
  }
  return {};
}

std::string check_same_input(const GradcheckCase& c) {
  if (!c.same_input) return {};
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    for (std::size_t j = i + 1; j < c.inputs.size(); ++j) {
      if (!(c.inputs[i].shape() == c.inputs[j].shape())) continue;
      std::vector<Tensor> inputs = c.inputs;
      inputs[i] = inputs[j].clone();
      const Run apart = run(c, inputs);
      const Run together = run(c, inputs, [&](std::vector<Var>& x) { x[i] = x[j]; });
      const Tensor &a = apart.gradients[i], &b = apart.gradients[j], &sum = together.gradients[j];
      const double allowed = 1e-12 * std::max({1.0, largest(a), largest(b)});
      for (std::int64_t k = 0; k < sum.numel(); ++k)
        if (!(std::abs(sum.at(k) - (a.at(k) + b.at(k))) <= allowed))
          return text_of("one Var as inputs ", i, " and ", j, ": its gradient is ", sum.at(k), " at element ", k,
                         ", not the sum of ", a.at(k), " and ", b.at(k));
    }
  }
  return {};
}

std::vector<Tensor> in_dtype(const std::vector<Tensor>& tensors, DType dtype) {
  std::vector<Tensor> result;
  for (const Tensor& t : tensors) result.push_back(t.to(dtype));
  return result;
}

// On values, parameters and cotangent rounded to `values`, computed in `dtype`.
Run run_in(const GradcheckCase& c, DType dtype, DType values = DType::f32) {
  std::optional<ConvertScope> rounded, scope;
  if (c.module && is_16bit(values)) rounded.emplace(*c.module, values);
  if (c.module) scope.emplace(*c.module, dtype);
  return run(c, in_dtype(in_dtype(c.inputs, values), dtype), Cotangent{values});
}

// In f64, with values, parameters and cotangent rounded to `values` and then moved by its last place.
Run run_moved(const GradcheckCase& c, DType values) {
  std::uint64_t stream = 1;
  std::vector<Tensor> inputs = in_dtype(in_dtype(c.inputs, values), DType::f64);
  for (Tensor& t : inputs) move_by_last_place(t, values, stream++);
  std::optional<ConvertScope> rounded, scope;
  if (c.module) rounded.emplace(*c.module, values);
  if (c.module) scope.emplace(*c.module, DType::f64);
  for (const NamedParameter& p : parameters_of(c)) move_by_last_place(p.parameter->mutable_value(), values, stream++);
  return run(c, inputs, Cotangent{values, true});
}

// Computed in `dtype` against f64 from the same rounded values. Errors are relative to the largest entry of a tensor
// or, where that holds zeros such as the gradient of a key's bias, to `least` of the largest of all. Where terms
// cancel, the last digit of the inputs decides about more than `tolerance`: `moves` times that is allowed too, up to
// `most`.
struct Comparison {
  DType dtype;
  double tolerance, moves, most, least;
};
std::string compare_in(const GradcheckCase& c, const Comparison& how, double& worst) {
  const Run exact = run_in(c, DType::f64, how.dtype), moved = run_moved(c, how.dtype);
  const Run got = run_in(c, how.dtype, how.dtype);
  std::string problem;
  auto compare = [&](const std::vector<Tensor>& right, const std::vector<Tensor>& beside,
                     const std::vector<Tensor>& ours, auto&& name) {
    double all = 0;
    for (const Tensor& t : right) all = std::max(all, largest(t));
    for (std::size_t i = 0; i < right.size(); ++i) {
      const double smallest_normal = how.dtype == DType::f16 ? 0x1p-14 : 1e-30;
      const double scale = std::max({largest(right[i]), how.least * all, smallest_normal});
      const double error = distance(ours[i], right[i]) / scale;
      worst = std::max(worst, error);
      const double allowed = how.tolerance + std::min(how.most, how.moves * distance(beside[i], right[i]) / scale);
      if (!(error <= allowed) && problem.empty())
        problem =
            text_of(name(i), " is off by ", number(error), " of its largest entry; ", number(allowed), " is allowed");
    }
  };
  compare(exact.outputs, moved.outputs, got.outputs, [](std::size_t i) { return text_of("output ", i); });
  compare(exact.gradients, moved.gradients, got.gradients, [&](std::size_t i) { return gradient_name(c, i); });
  return problem;
}

std::string check_f32(const GradcheckCase& c, GradcheckCaseResult& result) {
  return compare_in(c, {DType::f32, c.f32_tolerance, 64, 1e-2, 1e-3}, result.f32_error);
}

// Without a bound: through several layers the last digit of bf16 can decide about everything.
std::string check_low(const GradcheckCase& c, DType dtype, double& worst) {
  constexpr double kUnbounded = std::numeric_limits<double>::infinity();
  return compare_in(c, {dtype, c.low_tolerance * last_place(dtype) / 2, 8, kUnbounded, 1e-2}, worst);
}

bool runs_low(const GradcheckCase& c) { return c.low && c.skip_low.empty(); }

class ThreadScope {
 public:
  ThreadScope() : outer_(num_threads()) {}
  ~ThreadScope() { set_num_threads(outer_); }

 private:
  int outer_;
};

std::string check_determinism(const GradcheckCase& c) {
  const ThreadScope restore;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    if (is_16bit(dtype) && !runs_low(c)) continue;
    std::optional<Run> first;
    for (const int threads : {1, 1, 2, 3}) {
      set_num_threads(threads);
      const Run got = run_in(c, dtype);
      if (!first) first = got;
      const std::string when = text_of("between two runs in ", dtype, ", the second on ", threads, " threads");
      const std::string problem = compare_bits(c, *first, got, when);
      if (!problem.empty()) return problem;
    }
  }
  return {};
}

}  // namespace

GradcheckReport gradcheck(const GradcheckCase& c) {
  return c.module ? gradcheck(*c.module, c.function, c.inputs, c.gradcheck)
                  : gradcheck(c.function, c.inputs, c.gradcheck);
}

GradcheckCaseResult run_case(const GradcheckCase& c) {
  const auto start = std::chrono::steady_clock::now();
  // Everything but the comparison of thread counts runs on one: rows are small, and the bits are the same.
  const ThreadScope threads;
  set_num_threads(1);
  GradcheckCaseResult result;
  auto check = [&](std::string_view what, auto&& body) {
    std::string problem;
    try {
      problem = body();
    } catch (const std::exception& e) {
      problem = e.what();
    }
    if (problem.empty()) return;
    result.details += text_of("  ", what, ": ", problem, "\n");
    result.failed.emplace_back(what);
  };
  auto in_f64 = [&](auto&& body) {
    std::optional<ConvertScope> scope;
    if (c.module) scope.emplace(*c.module, DType::f64);
    return body();
  };
  check("gradient", [&] { return check_gradient(c, result); });
  check("memory", [&] { return in_f64([&] { return check_memory(c); }); });
  check("untracked", [&] { return in_f64([&] { return check_untracked(c); }); });
  check("accumulation", [&] { return in_f64([&] { return check_accumulation(c); }); });
  check("same input", [&] { return in_f64([&] { return check_same_input(c); }); });
  check("f32", [&] { return check_f32(c, result); });
  if (runs_low(c)) {
    check("bf16", [&] { return check_low(c, DType::bf16, result.bf16_error); });
    check("f16", [&] { return check_low(c, DType::f16, result.f16_error); });
  }
  check("determinism", [&] { return check_determinism(c); });

  result.passed = result.details.empty();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  result.seconds = elapsed.count();
  const std::string name = c.name + std::string(c.name.size() < 48 ? 48 - c.name.size() : 1, ' ');
  std::string low;
  if (runs_low(c)) low = text_of(", bf16 ", number(result.bf16_error), ", f16 ", number(result.f16_error));
  if (!c.skip_low.empty()) low = ", not in bf16 and f16";
  result.line = text_of(result.passed ? "ok    " : "FAIL  ", name, "gradient ", number(result.gradient_error), ", f32 ",
                        number(result.f32_error), low, ", ", result.report.kinks, " kinks, ",
                        static_cast<std::int64_t>(1e3 * result.seconds), " ms");
  return result;
}

}  // namespace tapestry
