// Pointwise kernels of one input against references in double and numeric derivatives.
#include <map>
#include <numbers>
#include <string>

#include "core/kernels/pointwise_formulas.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

struct UnaryOp {
  std::string name;
  std::function<void(const Tensor&, Tensor&)> forward;
  std::function<void(const Tensor&, const Tensor&, Grad)> backward;
  Saves saves;
  double (*f)(double);   // the kernel's formula, on doubles
  double (*df)(double);  // its derivative, from the saved value
};
const std::vector<UnaryOp> kUnaryOps{
#define TAP_ROW(name, Formula)                       \
  {#name,                                            \
   cpu::name##_forward,                              \
   cpu::name##_backward,                             \
   formula::Formula::kSaves,                         \
   [](double x) { return formula::Formula{}.f(x); }, \
   [](double saved) { return formula::Formula{}.df(saved); }},
    TAP_UNARY_OPS(TAP_ROW)
#undef TAP_ROW
// With the formula's default numbers.
#define TAP_ROW(name, Formula)                                                                                      \
  {#name,                                                                                                           \
   [](const Tensor& x, Tensor& y) { cpu::name##_forward(formula::Formula{}, x, y); },                               \
   [](const Tensor& dy, const Tensor& saved, Grad dx) { cpu::name##_backward(formula::Formula{}, dy, saved, dx); }, \
   formula::Formula::kSaves,                                                                                        \
   [](double x) { return formula::Formula{}.f(x); },                                                                \
   [](double saved) { return formula::Formula{}.df(saved); }},
        TAP_UNARY_OPS_WITH_NUMBERS(TAP_ROW)
#undef TAP_ROW
};

// Independent of the formulas, through std:: alone.
double reference(const std::string& name, double x) {
  static const std::map<std::string, double (*)(double)> all{
      {"neg", [](double v) { return -v; }},
      {"exp", [](double v) { return std::exp(v); }},
      {"log", [](double v) { return std::log(v); }},
      {"sqrt", [](double v) { return std::sqrt(v); }},
      {"square", [](double v) { return v * v; }},
      {"tanh", [](double v) { return std::tanh(v); }},
      {"sigmoid", [](double v) { return 1 / (1 + std::exp(-v)); }},
      {"relu", [](double v) { return v > 0 ? v : 0; }},
      {"silu", [](double v) { return v / (1 + std::exp(-v)); }},
      {"gelu", [](double v) { return v * 0.5 * std::erfc(-v / std::sqrt(2.0)); }},
      {"abs", [](double v) { return std::abs(v); }},
      {"sign", [](double v) { return v > 0 ? 1.0 : -1.0; }},
      {"expm1", [](double v) { return std::expm1(v); }},
      {"log1p", [](double v) { return std::log1p(v); }},
      {"rsqrt", [](double v) { return 1 / std::sqrt(v); }},
      {"sin", [](double v) { return std::sin(v); }},
      {"cos", [](double v) { return std::cos(v); }},
      {"erf", [](double v) { return std::erf(v); }},
      {"affine", [](double v) { return v; }},
      {"reciprocal", [](double v) { return 1 / v; }},
      {"power", [](double v) { return v * v; }},
      {"clamp", [](double v) { return std::clamp(v, -1.0, 1.0); }},
      {"leaky_relu", [](double v) { return v > 0 ? v : 0.01 * v; }},
      {"elu", [](double v) { return v > 0 ? v : std::expm1(v); }},
      {"softplus", [](double v) { return v > 0 ? v + std::log1p(std::exp(-v)) : std::log1p(std::exp(v)); }},
      {"gelu_tanh",
       [](double v) { return v / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v))); }},
  };
  return all.at(name)(x);
}

bool positive_only(const UnaryOp& op) {
  return op.name == "log" || op.name == "sqrt" || op.name == "log1p" || op.name == "rsqrt";
}

Tensor input_for(const UnaryOp& op, const Shape& shape, DType dtype) {
  Tensor x = random_normal(shape, DType::f64, 5);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    double& value = x.mutable_data<double>()[i];
    value *= 2.5;
    if (positive_only(op)) value = std::abs(value) + 0.1;
    if (op.name == "reciprocal") value += value < 0 ? -0.3 : 0.3;
  }
  return x.to(dtype);
}

double slope(const UnaryOp& op, double x) {
  const double h = 1e-5 * std::max(1.0, std::abs(x));
  return (reference(op.name, x + h) - reference(op.name, x - h)) / (2 * h);
}

const Tensor& saved_of(const UnaryOp& op, const Tensor& x, const Tensor& y) {
  static const Tensor nothing;
  return op.saves == Saves::input ? x : op.saves == Saves::output ? y : nothing;
}

double derivative_at(const UnaryOp& op, double x) { return op.df(op.saves == Saves::output ? op.f(x) : x); }
float derivative_at(const UnaryOp& op, float x) {
  const Tensor input = full({1}, x), one = full({1}, 1);
  Tensor y = empty({1});
  op.forward(input, y);
  Target dx({1}, DType::f32, false);
  op.backward(one, saved_of(op, input, y), dx.grad());
  return static_cast<float>(dx.tensor().at(0));
}

}  // namespace

TEST_CASE("formulas in double: value and derivative against std:: and central differences") {
  for (const UnaryOp& op : kUnaryOps) {
    CAPTURE(op.name);
    for (double x = -9.05; x < 9; x += 0.1) {
      if (positive_only(op) && x < 0.2) continue;
      CHECK(op.f(x) == doctest::Approx(reference(op.name, x)).epsilon(1e-12));
      CHECK(close(derivative_at(op, x), slope(op, x), 1e-6));
    }
  }
}

TEST_CASE("unary kernels: f32 and f64, odd lengths, first and second write") {
  for (const UnaryOp& op : kUnaryOps)
    for (DType dtype : {DType::f32, DType::f64})
      for (std::int64_t n : {0, 1, 2, 7, 16, 31, 33, 129, 4099}) {
        CAPTURE(op.name);
        CAPTURE(n);
        const double tolerance = dtype == DType::f32 ? 1e-6 : 1e-13;
        const Tensor x = input_for(op, {n}, dtype), dy = random_normal({n}, dtype, 6);
        Tensor y = full({n}, kNaN, dtype);
        op.forward(x, y);
        std::vector<double> right_y, right_dx;
        for (std::int64_t i = 0; i < n; ++i) {
          right_y.push_back(reference(op.name, x.at(i)));
          right_dx.push_back(dy.at(i) * derivative_at(op, x.at(i)));
        }
        check_close(y, right_y, tolerance);
        for (bool second : {false, true}) {
          Target dx({n}, dtype, second);
          op.backward(dy, saved_of(op, x, y), dx.grad());
          dx.check(right_dx, 4 * tolerance);
        }
        op.backward(dy, saved_of(op, x, y), Grad());
      }
}

TEST_CASE("huge arguments give limits, never inf * 0; NaN gives NaN") {
  for (const UnaryOp& op : kUnaryOps) {
    CAPTURE(op.name);
    Tensor y = empty({1});
    op.forward(full({1}, kNaN), y);
    CHECK(std::isnan(y.at(0)));
    CHECK(std::isnan(op.f(kNaN)));
    if (op.saves != Saves::nothing) CHECK(std::isnan(derivative_at(op, kNaN)));
    if (op.saves != Saves::nothing) CHECK(std::isnan(derivative_at(op, static_cast<float>(kNaN))));
    if (op.name == "exp" || op.name == "expm1" || positive_only(op)) continue;
    for (double magnitude : {20.0, 90.0, 1001.0, 1e4, 1e19, 3e38})
      for (double x : {magnitude, -magnitude}) {
        CAPTURE(x);
        CHECK(!std::isnan(op.f(x)));
        CHECK(std::isfinite(derivative_at(op, x)));
        op.forward(full({1}, x), y);
        CHECK(!std::isnan(y.at(0)));
        if (op.name != "square" && op.name != "power") CHECK(std::isfinite(derivative_at(op, static_cast<float>(x))));
      }
  }
  for (const UnaryOp& op : kUnaryOps) {
    if (op.name != "silu" && op.name != "gelu" && op.name != "gelu_tanh" && op.name != "relu" && op.name != "softplus")
      continue;
    CAPTURE(op.name);
    for (double x : {1e4, 3e38, kInf}) {
      Tensor y = empty({2});
      op.forward(tensor({x, -x}), y);
      CHECK(y.at(0) == static_cast<double>(static_cast<float>(x)));
      CHECK(y.at(1) == 0);
      CHECK(op.f(x) == x);
      CHECK(op.f(-x) == 0);
      CHECK(derivative_at(op, x) == 1);
      CHECK(derivative_at(op, -x) == 0);
      CHECK(derivative_at(op, static_cast<float>(x)) == 1);
      CHECK(derivative_at(op, static_cast<float>(-x)) == 0);
    }
  }
}

TEST_CASE("relu at zero and NaN; sqrt at zero") {
  const Tensor x = tensor({-1, 0, 2, kNaN, -0.0}), dy = full({5}, 3);
  Tensor y = empty({5});
  cpu::relu_forward(x, y);
  check_close(y, {0, 0, 2, kNaN, 0}, 0);
  Target dx({5}, DType::f32, false);
  cpu::relu_backward(dy, y, dx.grad());
  dx.check({0, 0, 3, kNaN, 0}, 0);
  Target dz({1}, DType::f32, false);
  cpu::sqrt_backward(full({1}, 1), full({1}, 0), dz.grad());
  CHECK(dz.tensor().at(0) == kInf);
}

TEST_CASE("F12 views offset by 1, 2 and 3 elements equal the packed result bit for bit") {
  for (const UnaryOp& op : kUnaryOps)
    for (DType dtype : {DType::f32, DType::f64})
      for (std::int64_t n : {1, 5, 17, 63, 131})
        for (std::int64_t offset : {1, 2, 3}) {
          CAPTURE(op.name);
          const Tensor x = input_for(op, {n}, dtype), dy = random_normal({n}, dtype, 8);
          Tensor y = empty({n}, dtype), view = at_offset(empty({n}, dtype), 4 - offset);
          op.forward(x, y);
          op.forward(at_offset(x, offset), view);
          CHECK(same_bits(y, view));
          Target packed({n}, dtype, true), shifted({n}, dtype, true, offset);
          op.backward(dy, saved_of(op, x, y), packed.grad());
          const Tensor& saved = saved_of(op, x, y);
          op.backward(at_offset(dy, 4 - offset), saved ? at_offset(saved, offset) : saved, shifted.grad());
          CHECK(same_bits(packed.tensor(), shifted.tensor()));
        }
}

TEST_CASE("affine: factor x + offset") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = random_normal({37}, dtype, 1), dy = random_normal({37}, dtype, 2);
    Tensor y = empty({37}, dtype);
    cpu::affine_forward(formula::Affine{-2.5, 0.25}, x, y);
    std::vector<double> right, gradient;
    for (std::int64_t i = 0; i < 37; ++i) {
      right.push_back(-2.5 * x.at(i) + 0.25);
      gradient.push_back(-2.5 * dy.at(i));
    }
    check_close(y, right, 1e-6);
    for (bool second : {false, true}) {
      Target dx({37}, dtype, second);
      cpu::affine_backward(formula::Affine{-2.5, 0.25}, dy, {}, dx.grad());
      dx.check(gradient, 1e-6);
    }
  }
}

TEST_CASE("same bits for any number of threads") {
  const Shape shape{301, 333};
  const Tensor x = random_normal(shape, DType::f32, 1), dy = random_normal(shape, DType::f32, 2);
  check_same_bits_for_any_threads([&] {
    std::vector<Tensor> results;
    for (const UnaryOp& op : kUnaryOps) {
      if (positive_only(op)) continue;
      Tensor y = empty(shape);
      op.forward(x, y);
      Target dx(shape, DType::f32, true);
      op.backward(dy, saved_of(op, x, y), dx.grad());
      results.push_back(y);
      results.push_back(dx.tensor());
    }
    return results;
  });
}
