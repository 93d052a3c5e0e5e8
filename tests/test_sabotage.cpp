// Faults as people make them, planted into ops as people write them: gradcheck finds every one and names its kind, and
// says nothing where no kind fits. The same op without the fault passes.
#include <doctest/doctest.h>

#include <set>

#include "tests/planted_ops.h"

using namespace tapestry;
using namespace tapestry::planted;

namespace {

using Kind = GradcheckDiagnosis;
using Inputs = std::array<Tensor, 2>;
using Forward = std::function<Tensor(const Inputs& x)>;
// Element i of the gradient of one input.
using Backward = std::function<double(const Inputs& x, const Tensor& y, const Tensor& dy, std::int64_t i)>;

struct Op {
  Forward forward;
  std::vector<Backward> backward;  // one for each input
};

GradcheckFunction function_of(Op op) {
  return [op = std::make_shared<const Op>(std::move(op))](std::span<const Var> in) {
    Inputs x;
    for (std::size_t k = 0; k < in.size(); ++k) x[k] = in[k].value();
    const Tensor y = op->forward(x);
    return std::vector<Var>{record(
        "planted", y,
        [x, y, o = op.get()](const Tensor& dy, std::span<const Grad> grads) {
          for (std::size_t k = 0; k < grads.size(); ++k)
            write(grads[k], [&](std::int64_t i) { return o->backward[k](x, y, dy, i); });
        },
        in)};
  };
}

// y[i] = value(i)
template <class F>
Tensor generate(const Shape& shape, F value) {
  Tensor y = empty(shape, DType::f64);
  double* out = y.mutable_data<double>();
  for (std::int64_t i = 0; i < y.numel(); ++i) out[i] = value(i);
  return y;
}

template <class F>
double sum(std::int64_t n, F value) {
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i) total += value(i);
  return total;
}

constexpr std::int64_t R = 3, C = 4;
const Shape kShape{R, C};

#define FORWARD(...) \
  [](const Inputs& x) { return generate(kShape, [&](std::int64_t i) -> double { return __VA_ARGS__; }); }
#define BACKWARD(...)                                                                \
  [](const Inputs& x, const Tensor& y, const Tensor& dy, std::int64_t i) -> double { \
    (void)x, (void)y;                                                                \
    return __VA_ARGS__;                                                              \
  }
double a(const Inputs& x, std::int64_t i) { return x[0].at(i); }
double b(const Inputs& x, std::int64_t i) { return x[1].at(i); }
double of_row(const Tensor& t, std::int64_t i, std::int64_t k) { return t.at(i / C * C + k); }

struct Statistics {
  double mean, rstd;
};
Statistics statistics(const Tensor& x, std::int64_t i) {
  const double mean = sum(C, [&](auto k) { return of_row(x, i, k); }) / C;
  const double variance = sum(C, [&](auto k) { return std::pow(of_row(x, i, k) - mean, 2); }) / C;
  return {mean, 1 / std::sqrt(variance)};
}
// LayerNorm's dx with parts that can be left out.
double layernorm_gradient(const Tensor& x, const Tensor& y, const Tensor& dy, std::int64_t i, bool mean_term = true,
                          bool variance_term = true, bool scaled = true) {
  const double mean = sum(C, [&](auto k) { return of_row(dy, i, k); }) / C;
  const double along = sum(C, [&](auto k) { return of_row(dy, i, k) * of_row(y, i, k); }) / C;
  return (scaled ? statistics(x, i).rstd : 1) *
         (dy.at(i) - (mean_term ? mean : 0) - (variance_term ? y.at(i) * along : 0));
}
double softmax_denominator(const Tensor& x, std::int64_t i) {
  return sum(C, [&](auto k) { return std::exp(of_row(x, i, k)); });
}
double norm_of(const Tensor& x) {
  return std::sqrt(sum(x.numel(), [&](auto k) { return x.at(k) * x.at(k); }));
}
double logistic(double v) { return 1 / (1 + std::exp(-v)); }

struct Sabotage {
  std::string what;
  Kind expected;
  std::string says;  // part of the diagnosis
  std::vector<Tensor> inputs;
  GradcheckFunction right, wrong;
};

class Suite {
 public:
  // The fault is in the gradient of input `at`.
  void plant(std::string what, Kind expected, std::string says, std::vector<Tensor> inputs, Op op, std::size_t at,
             Backward fault) {
    Op broken = op;
    broken.backward[at] = std::move(fault);
    all.push_back({std::move(what), expected, std::move(says), std::move(inputs), function_of(std::move(op)),
                   function_of(std::move(broken))});
  }
  template <class F>
  void plant(std::string what, Kind expected, std::string says, std::vector<Tensor> inputs, F op, Bug bug) {
    all.push_back({std::move(what), expected, std::move(says), std::move(inputs),
                   gradcheck_function(with(op, Bug::none)), gradcheck_function(with(op, bug))});
  }
  std::vector<Sabotage> all;
};

const Tensor kX = normal(kShape), kY = normal(kShape, 3), kRow = normal({C}, 1), kColumn = normal({R, 1}, 4),
             kSquare = normal({C, C}, 2);

void plant_factors(Suite& s) {
  s.plant("tanh: sign", Kind::sign_flipped, "input 0", {kX},
          {FORWARD(std::tanh(a(x, i))), {BACKWARD((1 - y.at(i) * y.at(i)) * dy.at(i))}}, 0,
          BACKWARD((y.at(i) * y.at(i) - 1) * dy.at(i)));
  s.plant("a - b: db is dy", Kind::sign_flipped, "input 1", {kX, kY},
          {FORWARD(a(x, i) - b(x, i)), {BACKWARD(dy.at(i)), BACKWARD(-dy.at(i))}}, 1, BACKWARD(dy.at(i)));
  s.plant("square: 2 forgotten", Kind::constant_factor, "0.5 times", {kX},
          {FORWARD(a(x, i) * a(x, i)), {BACKWARD(2 * a(x, i) * dy.at(i))}}, 0, BACKWARD(a(x, i) * dy.at(i)));
  s.plant("cube: 0.1 % too large", Kind::constant_factor, "1.001 times", {kX}, cube, Bug::factor);
  s.plant("mean: 1/n forgotten", Kind::constant_factor, "it is 3, the extent of axis 0 of input 0", {kX}, mean_of_rows,
          Bug::missing_mean);
  s.plant("scaled sum: 1/sqrt(n) forgotten", Kind::constant_factor, "it is sqrt of 3, the extent of axis 0", {kX},
          {FORWARD(a(x, i) / std::sqrt(3.0)), {BACKWARD(dy.at(i) / std::sqrt(3.0))}}, 0, BACKWARD(dy.at(i)));
  s.plant("2 exp(x): doubled in place after it was kept", Kind::constant_factor, "2 times", {kX}, twice_exp,
          Bug::stale);
  s.plant("exp: dy alone", Kind::missing_factor, "multiply it by output 0", {kX},
          {FORWARD(std::exp(a(x, i))), {BACKWARD(y.at(i) * dy.at(i))}}, 0, BACKWARD(dy.at(i)));
  s.plant("a * b: da is dy", Kind::missing_factor, "multiply it by input 1", {kX, kY},
          {FORWARD(a(x, i) * b(x, i)), {BACKWARD(b(x, i) * dy.at(i)), BACKWARD(a(x, i) * dy.at(i))}}, 0,
          BACKWARD(dy.at(i)));
  s.plant(
      "a / b: b instead of its square", Kind::missing_factor, "divide it by input 1", {kX, kY},
      {FORWARD(a(x, i) / b(x, i)), {BACKWARD(dy.at(i) / b(x, i)), BACKWARD(-a(x, i) / b(x, i) / b(x, i) * dy.at(i))}},
      1, BACKWARD(-a(x, i) / b(x, i) * dy.at(i)));
  s.plant("reciprocal: y^4 instead of y^2", Kind::wrong_power, "is the square of the right one", {kX},
          {FORWARD(1 / a(x, i)), {BACKWARD(-y.at(i) * y.at(i) * dy.at(i))}}, 0,
          BACKWARD(-y.at(i) * y.at(i) * y.at(i) * y.at(i) * dy.at(i)));
  s.plant("softsign: square forgotten", Kind::wrong_power, "the square root", {kX},
          {FORWARD(a(x, i) / (1 + std::abs(a(x, i)))), {BACKWARD(dy.at(i) / std::pow(1 + std::abs(a(x, i)), 2))}}, 0,
          BACKWARD(dy.at(i) / (1 + std::abs(a(x, i)))));
  s.plant("layernorm: 1/std forgotten", Kind::missing_factor, "each row along axis 1", {kX},
          {FORWARD((a(x, i) - statistics(x[0], i).mean) * statistics(x[0], i).rstd),
           {BACKWARD(layernorm_gradient(x[0], y, dy, i))}},
          0, BACKWARD(layernorm_gradient(x[0], y, dy, i, true, true, false)));
}

void plant_terms(Suite& s) {
  const Op layernorm{FORWARD((a(x, i) - statistics(x[0], i).mean) * statistics(x[0], i).rstd),
                     {BACKWARD(layernorm_gradient(x[0], y, dy, i))}};
  s.plant("layernorm: mean of dy forgotten", Kind::missing_term, "a constant", {kX}, layernorm, 0,
          BACKWARD(layernorm_gradient(x[0], y, dy, i, false)));
  s.plant("layernorm: variance held constant", Kind::missing_term, "axis 1", {kX}, layernorm, 0,
          BACKWARD(layernorm_gradient(x[0], y, dy, i, true, false)));
  s.plant("softmax: y * sum(dy * y) forgotten", Kind::missing_term, "times the output", {kX}, softmax,
          Bug::missing_term);
  s.plant("log_softmax: sum of dy forgotten", Kind::missing_term, "axis 1", {kX},
          {FORWARD(a(x, i) - std::log(softmax_denominator(x[0], i))),
           {BACKWARD(dy.at(i) - std::exp(y.at(i)) * sum(C, [&](auto k) { return of_row(dy, i, k); }))}},
          0, BACKWARD(dy.at(i)));
  s.plant("x / |x|: norm held constant", Kind::missing_term, "all of dy", {kX},
          {FORWARD(a(x, i) / norm_of(x[0])),
           {BACKWARD((dy.at(i) - y.at(i) * sum(R * C, [&](auto k) { return dy.at(k) * y.at(k); })) / norm_of(x[0]))}},
          0, BACKWARD(dy.at(i) / norm_of(x[0])));
  s.plant("x + x^3: residual forgotten", Kind::missing_term, "direct path", {kX},
          {FORWARD(a(x, i) + std::pow(a(x, i), 3)), {BACKWARD((1 + 3 * a(x, i) * a(x, i)) * dy.at(i))}}, 0,
          BACKWARD(3 * a(x, i) * a(x, i) * dy.at(i)));
}

void plant_places(Suite& s) {
  s.plant("x W: dy W instead of dy W^T", Kind::transposed, "input 0", {kX, kSquare}, product, Bug::transposed);
  auto times_matrix = FORWARD(sum(C, [&](auto k) { return of_row(x[0], i, k) * b(x, k * C + i % C); }));
  s.plant("x W: dy^T x instead of x^T dy", Kind::transposed, "axes 0 and 1", {kX, kSquare},
          {times_matrix,
           {BACKWARD(sum(C, [&](auto k) { return of_row(dy, i, k) * b(x, i % C * C + k); })),
            BACKWARD(sum(R, [&](auto r) { return a(x, r * C + i / C) * dy.at(r * C + i % C); }))}},
          1, BACKWARD(sum(R, [&](auto r) { return a(x, r * C + i % C) * dy.at(r * C + i / C); })));
  s.plant("cumsum: summed from the front", Kind::transposed, "input 0", {kX},
          {FORWARD(sum(i % C + 1, [&](auto k) { return of_row(x[0], i, k); })),
           {BACKWARD(sum(C - i % C, [&](auto k) { return dy.at(i + k); }))}},
          0, BACKWARD(sum(i % C + 1, [&](auto k) { return of_row(dy, i, k); })));
  s.plant("flip: dy not flipped", Kind::misplaced, "reversed along axis 1", {kX},
          {FORWARD(of_row(x[0], i, C - 1 - i % C)), {BACKWARD(of_row(dy, i, C - 1 - i % C))}}, 0, BACKWARD(dy.at(i)));
  s.plant("roll: dy not rolled back", Kind::misplaced, "shifted by 1 along axis 1", {kX},
          {FORWARD(of_row(x[0], i, (i + C - 1) % C)), {BACKWARD(of_row(dy, i, (i + 1) % C))}}, 0, BACKWARD(dy.at(i)));
  s.plant("mean of rows: dy expanded along the other axis", Kind::wrong_axis, "axis", {kX}, mean_of_rows,
          Bug::wrong_axis);
  s.plant("softmax: sum over the columns", Kind::wrong_axis, "axis 0", {kX},
          {FORWARD(std::exp(a(x, i)) / softmax_denominator(x[0], i)),
           {BACKWARD(y.at(i) * (dy.at(i) - sum(C, [&](auto k) { return of_row(dy, i, k) * of_row(y, i, k); })))}},
          0,
          BACKWARD(y.at(i) * (dy.at(i) - sum(R, [&](auto r) { return dy.at(r * C + i % C) * y.at(r * C + i % C); }))));
  s.plant("a^2 b: gradients exchanged", Kind::wrong_input, "is the gradient of", {kX, kY}, square_times, Bug::swapped);
  s.plant("square: x overwritten by y", Kind::stale_value, "input 0 equals output 0", {kX},
          {FORWARD(a(x, i) * a(x, i)), {BACKWARD(2 * a(x, i) * dy.at(i))}}, 0, BACKWARD(2 * y.at(i) * dy.at(i)));
  s.plant("sin: derivative at the other input", Kind::stale_value, "input 0 equals input 1", {kX, kY},
          {FORWARD(std::sin(a(x, i)) + b(x, i)), {BACKWARD(std::cos(a(x, i)) * dy.at(i)), BACKWARD(dy.at(i))}}, 0,
          BACKWARD(std::cos(b(x, i)) * dy.at(i)));
}

void plant_parts(Suite& s) {
  const Op bias{FORWARD(a(x, i) + b(x, i % C)),
                {BACKWARD(dy.at(i)), BACKWARD(sum(R, [&](auto r) { return dy.at(r * C + i); }))}};
  s.plant("bias: first row instead of the sum", Kind::missing_sum, "only index 0 of axis 0", {kX, kRow}, bias, 1,
          BACKWARD(dy.at(i)));
  s.plant("scale: last row instead of the sum", Kind::missing_sum, "only index 2 of axis 0", {kX, kRow}, scale_columns,
          Bug::unreduced);
  s.plant("bias: mean instead of the sum", Kind::constant_factor, "1/3", {kX, kRow}, bias, 1,
          BACKWARD(sum(R, [&](auto r) { return dy.at(r * C + i); }) / R));
  s.plant("a [R, 1] + ...: last column instead of the sum", Kind::missing_sum, "only index 3 of axis 1", {kX, kColumn},
          {FORWARD(a(x, i) + b(x, i / C)),
           {BACKWARD(dy.at(i)), BACKWARD(sum(C, [&](auto k) { return dy.at(i * C + k); }))}},
          1, BACKWARD(dy.at(i * C + C - 1)));
  // Row r of the result is row {1, 0, 1}[r] of a table.
  s.plant("embedding: a row that occurs twice is overwritten", Kind::missing_sum, "instead of overwriting",
          {normal({2, C})},
          {FORWARD(a(x, (i / C + 1) % 2 * C + i % C)),
           {BACKWARD(i / C == 1 ? dy.at(i % C) + dy.at(2 * C + i % C) : dy.at(C + i % C))}},
          0, BACKWARD(i / C == 1 ? dy.at(2 * C + i % C) : dy.at(C + i % C)));
  s.plant("3 x: the first row left out", Kind::missing_slice, "index 0 of axis 0", {kX},
          {FORWARD(3 * a(x, i)), {BACKWARD(3 * dy.at(i))}}, 0, BACKWARD(i < C ? 0 : 3 * dy.at(i)));
  s.plant("smoothing: border treated as the inside", Kind::wrong_slice, "index 3 of axis 1", {kX},
          {FORWARD(i % C == C - 1 ? 2 * a(x, i) : std::sin(a(x, i))),
           {BACKWARD((i % C == C - 1 ? 2 : std::cos(a(x, i))) * dy.at(i))}},
          0, BACKWARD(std::cos(a(x, i)) * dy.at(i)));
  s.plant(
      "elu: slope 1 below 0", Kind::wrong_region, "below", {kX},
      {FORWARD(a(x, i) > 0 ? a(x, i) : std::exp(a(x, i)) - 1), {BACKWARD((a(x, i) > 0 ? 1 : y.at(i) + 1) * dy.at(i))}},
      0, BACKWARD(dy.at(i)));
  s.plant("a + b: b forgotten", Kind::zero_gradient, "input 1", {kX, kY},
          {FORWARD(a(x, i) + b(x, i)), {BACKWARD(dy.at(i)), BACKWARD(dy.at(i))}}, 1, BACKWARD(0 * dy.at(i)));
  s.all.push_back({"two outputs: one detached",
                   Kind::zero_gradient,
                   "output 1",
                   {kX},
                   gradcheck_function([](const Var& x) {
                     return std::array{cube(x, Bug::none), softmax(x, Bug::none)};
                   }),
                   gradcheck_function([](const Var& x) {
                     return std::array{cube(x, Bug::none), softmax(x.detach(), Bug::none)};
                   })});
  s.plant("first write adds", Kind::always_adds, "", {kX}, cube, Bug::always_adds);
  s.plant("second write assigns", Kind::always_assigns, "", {kX}, cube, Bug::always_assigns);
}

// Found, but like none of the patterns: the report must not guess.
void plant_unnamed(Suite& s) {
  s.plant("silu: the derivative of the sigmoid forgotten", Kind::none, "", {kX},
          {FORWARD(a(x, i) * logistic(a(x, i))),
           {BACKWARD((logistic(a(x, i)) + y.at(i) * (1 - logistic(a(x, i)))) * dy.at(i))}},
          0, BACKWARD(logistic(a(x, i) + 0.1) * dy.at(i)));
  s.plant("one entry 0.1 % too large", Kind::none, "", {kX}, cube, Bug::one_entry);
  s.plant("value overwritten after save()", Kind::none, "", {kX}, twice_exp, Bug::stale_saved);
  s.plant("a gradient not claimed", Kind::none, "", {kX, kRow}, scale_columns, Bug::forgets_claim);
  s.plant("NaN", Kind::none, "", {kX}, cube, Bug::nan);
  s.plant("another gradient each time", Kind::none, "", {kX}, cube, Bug::noise);
}

}  // namespace

TEST_CASE("Sabotage: every planted fault is found and its kind is named") {
  Suite suite;
  plant_factors(suite);
  plant_terms(suite);
  plant_places(suite);
  plant_parts(suite);
  plant_unnamed(suite);
  int named = 0;
  std::set<Kind> kinds;
  for (const Sabotage& s : suite.all) {
    CAPTURE(s.what);
    const GradcheckReport right = gradcheck(s.right, s.inputs);
    CHECK_MESSAGE(right.passed(), right.text());
    CHECK(right.diagnosis == Kind::none);
    const GradcheckReport wrong = gradcheck(s.wrong, s.inputs);
    CHECK(!wrong.passed());
    CHECK_MESSAGE(wrong.diagnosis == s.expected, "named ", name_of(wrong.diagnosis), "\n", wrong.text());
    CHECK_MESSAGE(wrong.text().find(s.says) != std::string::npos, wrong.text());
    if (wrong.fault == GradcheckFault::wrong_gradient) CHECK_MESSAGE(wrong.backward_is_wrong, wrong.text());
    named += wrong.diagnosis != Kind::none;
    kinds.insert(wrong.diagnosis);
  }
  MESSAGE(suite.all.size(), " faults planted, ", named, " named, of ", kinds.size() - 1, " kinds");
  CHECK(suite.all.size() >= 25);
  CHECK(named >= 20);
}

TEST_CASE("The diagnosis is made beyond the full Jacobian of the check as well") {
  const GradcheckReport report = gradcheck(with(mean_of_rows, Bug::missing_mean), {kX}, {.full_jacobian_limit = 1});
  CHECK(!report.full_jacobian);
  CHECK(report.diagnosis == Kind::constant_factor);
  CHECK(report.backward_is_wrong);
}

TEST_CASE("The sweep tells little precision from a wrong backward pass") {
  // Right, but the value carries noise that the error bar does not know of: a staircase of 1e-7.
  auto rounded = [](const Var& x) {
    return record(
        "rounded", map(x.value(), [](double v) { return std::round(v * v * 1e7) / 1e7; }),
        [x = save(x)](const Tensor& dy, Grad dx) {
          write(dx, [&](std::int64_t i) { return 2 * x().at(i) * dy.at(i); });
        },
        x);
  };
  const GradcheckReport noisy = gradcheck(rounded, {tensor({0.3, -0.7}).to(DType::f64)}, {.max_kink_share = 1});
  CHECK(!noisy.passed());
  CHECK(!noisy.backward_is_wrong);
  // A large step over a curved function.
  const GradcheckReport coarse = gradcheck(with(cube, Bug::none), {kX}, {.tolerance = 1e-12, .step = 1e-2});
  if (!coarse.passed()) CHECK_MESSAGE(!coarse.backward_is_wrong, coarse.text());
}

TEST_CASE("The report that autograd/README.md shows") {
  Suite suite;
  plant_terms(suite);
  const Sabotage& s = suite.all.front();
  REQUIRE(s.what == "layernorm: mean of dy forgotten");
  const std::string text = gradcheck(s.wrong, s.inputs).text();
  CHECK(text.find("missing term") != std::string::npos);
  std::printf("%s\n", text.c_str());
}
