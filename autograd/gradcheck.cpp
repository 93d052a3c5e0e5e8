// Central differences against backward. For each direction the function is evaluated at -2h, -h, h and 2h; the two
// central slopes give the numeric value and its error bar, the one-sided slopes tell kinks. For a smooth function the
// second differences over h and 2h are h f'' and 2h f'', so twice the first minus the second vanishes; a kink leaves
// its jump there.
#include "autograd/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "autograd/gradcheck_explanation.h"
#include "autograd/gradcheck_function.h"

namespace tapestry {
namespace {

using detail::CheckedFunction;
using Leaf = CheckedFunction::Leaf;
using Outputs = CheckedFunction::Outputs;
using Gradients = CheckedFunction::Gradients;
using Stencil = CheckedFunction::Stencil;

constexpr double kKinkThreshold = 1e-6;  // of the scale; what smooth functions leave is about 1e-10
constexpr int kElementsPerProbe = 4;

struct Slope {
  double value, error_bar;
  double rough;  // how far from smooth
};

// From one scalar at -2h, -h, 0, h, 2h, each known to within `noise`.
Slope slope(double minus2, double minus1, double zero, double plus1, double plus2, double h, double noise) {
  const double near = (plus1 - minus1) / (2 * h), far = (plus2 - minus2) / (4 * h);
  const double bend_near = (plus1 - 2 * zero + minus1) / h, bend_far = (plus2 - 2 * zero + minus2) / (2 * h);
  const double rough = std::max(std::abs(2 * bend_near - bend_far), std::abs(near - far));
  return {near, std::abs(near - far) / 3 + 4 * noise / h, rough};
}

bool same_bits(const Outputs& a, const Outputs& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}
bool same_bits(const Gradients& a, const Gradients& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Outputs& x, const Outputs& y) { return same_bits(x, y); });
}
bool all_finite(const std::vector<double>& v) {
  return std::all_of(v.begin(), v.end(), [](double x) { return std::isfinite(x); });
}
double largest(const std::vector<double>& v) {
  double result = 0;
  for (double x : v) result = std::isfinite(x) ? std::max(result, std::abs(x)) : result;
  return result;
}

class Checker {
 public:
  Checker(const CheckedFunction& f, Module* module, DType dtype, const GradcheckOptions& options)
      : f_(f), leaves_(f.leaves()), module_(module), options_(options), tally_(leaves_.size()) {
    const bool wide = dtype == DType::f64;
    epsilon_ = wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
    step_ = options.step > 0 ? options.step : std::cbrt(epsilon_);
    report_.tolerance = options.tolerance > 0 ? options.tolerance : wide ? 1e-7 : 2e-2;
    report_.inputs = static_cast<std::int64_t>(f.input_count());
    report_.parameters = static_cast<std::int64_t>(leaves_.size()) - report_.inputs;
    report_.seed = options.seed;
    report_.frozen = f.frozen();
  }

  GradcheckReport run() {
    try {
      if (there_is_something() && forward_is_sound() && recording_is_sound() && backward_is_sound()) compare_all();
      if (report_.fault == GradcheckFault::wrong_gradient) detail::explain(f_, step_, worst_slope_, report_);
    } catch (const std::exception& e) {
      look_for_forgotten_parameters();
      fault(GradcheckFault::error, e.what());
    }
    return std::move(report_);
  }

 private:
  bool fault(GradcheckFault kind, std::string message, GradcheckDiagnosis diagnosis = GradcheckDiagnosis::none) {
    if (report_.passed()) {
      report_.fault = kind;
      report_.message = std::move(message);
      report_.diagnosis = diagnosis;
    }
    return false;
  }

  bool there_is_something() {
    if (!leaves_.empty()) return true;
    return fault(GradcheckFault::error, text_of("there is nothing to check: no input, and ", report_.frozen.size(),
                                                " parameters that are all frozen; unfreeze(module), or give inputs"));
  }

  bool forward_is_sound() {
    base_ = f_.evaluate();
    if (!same_bits(base_, f_.evaluate()))
      return fault(GradcheckFault::not_deterministic,
                   "two evaluations on the same values differ; fix the random key, by RandomScope or by capturing it");
    for (std::size_t i = 0; i < base_.size(); ++i)
      if (!std::isfinite(base_[i]))
        return fault(GradcheckFault::not_finite, text_of("output element ", i, " is ", base_[i]));
    return true;
  }

  bool recording_is_sound() {
    Tape tape;
    const std::vector<Var> outputs = f_.record_on(tape);
    for (const Var& y : outputs) output_shapes_.push_back(y.shape());
    if (!same_bits(base_, CheckedFunction::flatten(outputs)))
      return fault(GradcheckFault::not_deterministic, "the result under a tape differs from the result without one");
    return parameters_are_checked(tape);
  }

  bool parameters_are_checked(const Tape& tape) {
    if (!module_ && !tape.touched_parameters().empty())
      return fault(GradcheckFault::not_visited,
                   text_of("the function uses ", tape.touched_parameters().size(),
                           " Parameters that are not checked; call gradcheck(module, function, inputs)"));
    try {
      if (module_) check_all_visited(*module_, tape);
    } catch (const Error& e) {
      return fault(GradcheckFault::not_visited, e.what());
    }
    return true;
  }

  // What is not visited keeps its dtype, so the first sign of it may be an op that refuses operands of two dtypes.
  void look_for_forgotten_parameters() {
    Tape tape;
    try {
      f_.record_on(tape);
    } catch (const std::exception&) {}
    parameters_are_checked(tape);
  }

  bool backward_is_sound() {
    const Tensor cotangent = random_cotangent(0);
    const Gradients first = f_.gradients(cotangent);
    if (!same_bits(first, f_.gradients(cotangent)))
      return fault(GradcheckFault::not_deterministic, "two backward passes on the same values differ");
    const Gradients onto_zeros = f_.gradients(cotangent, CheckedFunction::Memory::zeros);
    const Gradients in_window = f_.gradients(cotangent, CheckedFunction::Memory::window);
    for (std::size_t l = 0; l < leaves_.size(); ++l) {
      if (!all_finite(onto_zeros[l])) continue;  // reported where the entries are compared
      if (!same_bits(first[l], onto_zeros[l]))
        return fault(GradcheckFault::wrong_write,
                     text_of("the gradient of ", leaves_[l].name,
                             " depends on what its memory held; where claim() returns false, assign every element"),
                     GradcheckDiagnosis::always_adds);
      const std::vector<double> before = CheckedFunction::window(leaves_[l], l).to(DType::f64).to_vector<double>();
      const double allowed = 64 * epsilon_ * std::max(1.0, largest(first[l]));
      for (std::size_t j = 0; j < before.size(); ++j)
        if (!(std::abs(in_window[l][j] - before[j] - first[l][j]) <= allowed))
          return fault(GradcheckFault::wrong_write,
                       text_of("the gradient of ", leaves_[l].name,
                               " replaces what was gathered before; where claim() returns true, add to it"),
                       GradcheckDiagnosis::always_assigns);
    }
    return true;
  }

  Tensor random_cotangent(std::uint64_t stream) const {
    Tensor c = empty({static_cast<std::int64_t>(base_.size())}, DType::f64);
    fill_normal(c, 0, 1, RandomKey{options_.seed, stream});
    return c;
  }

  void compare_all() {
    std::int64_t elements = 0;
    for (const Leaf& leaf : leaves_) elements += leaf.value().numel();
    const auto outputs = static_cast<std::int64_t>(base_.size());
    report_.full_jacobian = elements == 0 || outputs <= options_.full_jacobian_limit / elements;
    if (report_.full_jacobian)
      compare_jacobian();
    else
      compare_probes();

    const std::int64_t seen = report_.compared + report_.kinks;
    const double allowed_kinks = options_.max_kink_share * static_cast<double>(seen);
    if (report_.wrong > 0)
      fault(GradcheckFault::wrong_gradient, wrong_inputs());
    else if (static_cast<double>(report_.kinks) > allowed_kinks || (seen > 0 && report_.compared == 0))
      fault(GradcheckFault::too_many_kinks,
            text_of(report_.kinks, " of ", seen, " entries lie on a kink; move the inputs away from it"));
  }

  // "the gradient of input 0 is wrong; 3 of 12 entries are", the worst input first.
  std::string wrong_inputs() const {
    std::string text;
    int inputs = 0;
    for (const bool worst : {true, false})
      for (std::size_t l = 0; l < leaves_.size(); ++l) {
        if ((leaves_[l].name == report_.worst.input) != worst || tally_[l].wrong == 0) continue;
        text += text_of(inputs++ ? ", that of " : "the gradient of ", leaves_[l].name, " is wrong; ", tally_[l].wrong,
                        " of ", tally_[l].seen, " entries are");
      }
    return text;
  }

  void compare_jacobian() {
    const std::size_t outputs = base_.size();
    std::vector<Gradients> analytic;  // [output][leaf][element]
    for (std::size_t i = 0; i < outputs; ++i) {
      Tensor cotangent = zeros({static_cast<std::int64_t>(outputs)}, DType::f64);
      cotangent.mutable_data<double>()[i] = 1;
      analytic.push_back(f_.gradients(cotangent));
    }
    const double noise = epsilon_ * largest(base_);
    for (std::size_t l = 0; l < leaves_.size(); ++l) {
      std::vector<Slope> numeric;  // [element][output]
      double largest_entry = 0;
      for (std::int64_t j = 0; j < leaves_[l].value().numel(); ++j) {
        const Stencil s = f_.evaluate_around(leaves_[l], j, step_);
        const double h = step_ * leaves_[l].unit(j);
        for (std::size_t i = 0; i < outputs; ++i) {
          numeric.push_back(slope(s.minus2[i], s.minus1[i], base_[i], s.plus1[i], s.plus2[i], h, noise));
          const double a = std::abs(analytic[i][l][static_cast<std::size_t>(j)]), n = std::abs(numeric.back().value);
          if (std::isfinite(a) && std::isfinite(n)) largest_entry = std::max({largest_entry, a, n});
        }
      }
      for (std::size_t k = 0; k < numeric.size(); ++k) {
        const std::size_t j = k / outputs, i = k % outputs;
        compare(leaves_[l], static_cast<std::int64_t>(j), static_cast<std::int64_t>(i), analytic[i][l][j], numeric[k],
                largest_entry, [this, l, i, j](double step) {
                  const Stencil s = f_.evaluate_around(leaves_[l], static_cast<std::int64_t>(j), step);
                  return (s.plus1[i] - s.minus1[i]) / (2 * step * leaves_[l].unit(static_cast<std::int64_t>(j)));
                });
      }
    }
  }

  void compare_probes() {
    for (int p = 1; p <= options_.probes; ++p) {
      const std::uint64_t stream = 1'000'000 * static_cast<std::uint64_t>(p);
      const Tensor cotangent = random_cotangent(stream);
      const Gradients analytic = f_.gradients(cotangent);
      for (std::size_t l = 0; l < leaves_.size(); ++l)
        if (leaves_[l].value().numel() > 0)
          compare_probe(leaves_[l], cotangent, analytic[l], RandomKey{options_.seed, stream + 1 + l});
    }
  }

  void compare_probe(const Leaf& leaf, const Tensor& cotangent, const std::vector<double>& analytic, RandomKey key) {
    const std::int64_t size = leaf.value().numel();
    std::vector<double> direction(analytic.size());
    double along = 0, squares = 0;
    for (std::size_t j = 0; j < direction.size(); ++j) {
      const auto index = static_cast<std::int64_t>(j);
      direction[j] = key.normal(index);
      const double moved = analytic[j] * direction[j] * leaf.unit(index);
      along += moved;
      squares += moved * moved;
    }
    auto slope_along = [this, &leaf, direction, cotangent](double step) {
      return projected(f_.evaluate_around(leaf, direction, step), cotangent, step);
    };
    compare(leaf, -1, -1, along, slope_along(step_), std::sqrt(squares),
            [slope_along](double step) { return slope_along(step).value; });
    for (int e = 0; e < kElementsPerProbe; ++e) {
      const std::int64_t j = key.below(size + e, size);
      auto slope_of = [this, &leaf, j, cotangent](double step) {
        return projected(f_.evaluate_around(leaf, j, step), cotangent, step * leaf.unit(j));
      };
      compare(leaf, j, -1, analytic[static_cast<std::size_t>(j)], slope_of(step_), largest(analytic),
              [slope_of](double step) { return slope_of(step).value; });
    }
  }

  // The slope of <outputs, cotangent>. Differences are taken before the sum, while they are exact.
  Slope projected(const Stencil& s, const Tensor& cotangent, double h) const {
    double minus2 = 0, minus1 = 0, plus1 = 0, plus2 = 0, squares = 0;
    const double* c = cotangent.data<double>();
    for (std::size_t i = 0; i < base_.size(); ++i) {
      minus2 += c[i] * (s.minus2[i] - base_[i]);
      minus1 += c[i] * (s.minus1[i] - base_[i]);
      plus1 += c[i] * (s.plus1[i] - base_[i]);
      plus2 += c[i] * (s.plus2[i] - base_[i]);
      squares += c[i] * base_[i] * c[i] * base_[i];
    }
    return slope(minus2, minus1, 0, plus1, plus2, h, epsilon_ * std::sqrt(squares));
  }

  // `slope_at`: the numeric value for any step, for the sweep.
  template <class SlopeAt>
  void compare(const Leaf& leaf, std::int64_t input_index, std::int64_t output_index, double analytic,
               const Slope& numeric, double largest_entry, const SlopeAt& slope_at) {
    const double scale = std::max({std::abs(analytic), std::abs(numeric.value), largest_entry});
    const double allowed = report_.tolerance * scale + numeric.error_bar;
    Tally& tally = tally_[static_cast<std::size_t>(&leaf - leaves_.data())];
    ++tally.seen;
    const bool finite = std::isfinite(analytic) && std::isfinite(numeric.value) && std::isfinite(numeric.rough);
    if (!finite)
      fault(GradcheckFault::not_finite,
            text_of("the gradient of ", leaf.name, " is not finite: analytic ", analytic, ", numeric ", numeric.value));
    if (finite && numeric.rough > kKinkThreshold * scale + 10 * numeric.error_bar) {
      ++report_.kinks;
      return;
    }
    ++report_.compared;
    const bool wrong = !finite || std::abs(analytic - numeric.value) > allowed;
    if (wrong) ++report_.wrong, ++tally.wrong;
    GradcheckReport::Entry entry{leaf.name, leaf.value().shape(), input_index,       0,     {},     output_index,
                                 analytic,  numeric.value,        numeric.error_bar, scale, allowed};
    const bool first = report_.worst.input.empty();
    if (!first && (wrong ? worst_is_wrong_ && entry.error() <= report_.worst.error()
                         : worst_is_wrong_ || entry.error() <= report_.worst.error()))
      return;
    for (const Shape& shape : output_shapes_) {
      entry.output_shape = shape;
      if (output_index < 0 || entry.output_index < shape.numel()) break;
      entry.output_index -= shape.numel();
      ++entry.output;
    }
    report_.worst = entry;
    if (wrong) worst_slope_ = slope_at;
    worst_is_wrong_ = wrong;
  }

  const CheckedFunction& f_;
  const std::vector<Leaf>& leaves_;
  Module* module_;
  const GradcheckOptions& options_;
  double epsilon_ = 0, step_ = 0;
  Outputs base_;  // at the point itself
  std::vector<Shape> output_shapes_;
  struct Tally {
    std::int64_t seen = 0, wrong = 0;
  };
  std::vector<Tally> tally_;  // of each leaf
  bool worst_is_wrong_ = false;
  std::function<double(double step)> worst_slope_;
  GradcheckReport report_;
};

}  // namespace

GradcheckReport detail::gradcheck(const GradcheckFunction& function, Module* module, const std::vector<Tensor>& inputs,
                                  const GradcheckOptions& options) {
  DType dtype = DType::f64;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TAP_CHECK(inputs[i], "gradcheck: input ", i, " is an empty Tensor");
    TAP_CHECK(inputs[i].dtype() != DType::f32 || options.allow_f32, "gradcheck: input ", i,
              " is f32, where differences are mostly rounding noise; pass x.to(DType::f64), or set allow_f32");
    TAP_CHECK(inputs[i].dtype() == DType::f64 || inputs[i].dtype() == DType::f32, "gradcheck: input ", i, " is ",
              inputs[i].dtype(), " and has no gradient; inputs are f64, the function captures everything else");
    if (inputs[i].dtype() == DType::f32) dtype = DType::f32;
  }
  std::optional<ConvertScope> scope;
  if (module) scope.emplace(*module, dtype);
  const CheckedFunction checked(function, module, inputs, options);
  return Checker(checked, module, dtype, options).run();
}

}  // namespace tapestry
