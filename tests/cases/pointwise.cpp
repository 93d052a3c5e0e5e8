// Pointwise functions: every unary op at four sizes, every binary op with and without broadcasting.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

using Unary = Var (*)(const Var&);
using Binary = Var (*)(const Var&, const Var&);
using Draw = Tensor (*)(const Shape&, std::uint64_t);

Tensor draw_normal(const Shape& shape, std::uint64_t stream) { return normal(shape, stream); }

// Multiples of 1/8 in [-2, 2], and the same moved by 1/16: no ties and none near.
Tensor on_grid(const Shape& shape, std::uint64_t stream, double offset) {
  Tensor t = ids(shape, 33, stream).to(DType::f64);
  double* x = t.mutable_data<double>();
  for (std::int64_t i = 0; i < t.numel(); ++i) x[i] = x[i] / 8 - 2 + offset;
  return t;
}
Tensor eighths(const Shape& shape, std::uint64_t stream) { return on_grid(shape, stream, 0); }
Tensor between_eighths(const Shape& shape, std::uint64_t stream) { return on_grid(shape, stream, 1.0 / 16); }

void add_unary(std::vector<Case>& cases, const std::string& name, Unary f, Draw draw) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{31}, Shape{3, 11}, Shape{2, 0}, Shape{7, 2003}})
    cases.push_back(row(text_of(name, " ", shape), {draw(shape, 1)}, f));
}

void add_binary(std::vector<Case>& cases, const std::string& name, Binary f, Draw draw_a = draw_normal,
                Draw draw_b = away_from_zero) {
  const std::pair<Shape, Shape> shapes[] = {
      {{1}, {1}},       {{31}, {31}},       {{3, 11}, {3, 11}},   {{2, 1}, {1, 3}},       {{1}, {5, 4}},
      {{5, 4}, {}},     {{4, 1}, {1, 4}},   {{2, 3, 4}, {3, 1}},  {{33}, {2, 33}},        {{2, 1, 3, 1}, {5, 1, 2}},
      {{0, 3}, {1, 3}}, {{61, 257}, {257}}, {{61, 1}, {61, 257}}, {{61, 257}, {61, 257}},
  };
  for (const auto& [a, b] : shapes)
    cases.push_back(row(text_of(name, " ", a, " ", b), {draw_a(a, 1), draw_b(b, 2)}, f));
}

// Masks, operands and results of different shapes.
void add_choices(std::vector<Case>& cases) {
  struct Shapes {
    Shape mask, a, b;
  };
  const Shapes shapes[] = {
      {{1}, {1}, {1}},       {{33}, {33}, {33}},    {{3, 1}, {1, 5}, {1}},         {{5}, {3, 1}, {3, 5}},
      {{2, 3}, {}, {}},      {{0, 3}, {3}, {1, 1}}, {{61, 257}, {257}, {61, 257}}, {{4, 1, 3}, {2, 1}, {4, 2, 1}},
      {{}, {2, 31}, {2, 1}}, {{7}, {7, 1}, {7}},
  };
  for (const auto& [mask, a, b] : shapes) {
    const Tensor chosen = ids(mask, 2, 3).to(DType::u8);
    cases.push_back(row(text_of("where ", mask, " ", a, " ", b), {normal(a, 1), normal(b, 2)},
                        [chosen](const Var& u, const Var& v) { return where(chosen, u, v); }));
    cases.push_back(row(text_of("masked_fill ", mask, " ", b), {normal(b, 2)},
                        [chosen](const Var& v) { return masked_fill(v, chosen, -1.5); }));
  }
}

}  // namespace

std::vector<Case> pointwise_cases() {
  std::vector<Case> cases;
  add_binary(cases, "add", add);
  add_binary(cases, "sub", sub);
  add_binary(cases, "mul", mul);
  add_binary(cases, "div", div);
  add_binary(cases, "pow", pow, positive, positive);
  add_binary(cases, "minimum", minimum, eighths, between_eighths);
  add_binary(cases, "maximum", maximum, eighths, between_eighths);
  for (const Shape& shape : {Shape{1}, Shape{33}, Shape{7, 2003}}) {
    const std::vector<Tensor> x{normal(shape, 1)};
    cases.push_back(row(text_of("scale ", shape), x, [](const Var& v) { return scale(v, -1.7); }));
    cases.push_back(row(text_of("add_scalar ", shape), x, [](const Var& v) { return add_scalar(v, 0.3); }));
  }
  add_choices(cases);
  const std::vector<Tensor> pair{normal({3, 5}, 1), away_from_zero({5}, 2)};
  cases.push_back(row("operator+ all forms", pair, [](const Var& a, const Var& b) { return 0.2 + (a + b) + 0.7; }));
  cases.push_back(row("operator- all forms", pair, [](const Var& a, const Var& b) { return 2.0 - (-(a - b) - 0.7); }));
  cases.push_back(row("operator* all forms", pair, [](const Var& a, const Var& b) { return 3.0 * (a * b) * 0.7; }));
  cases.push_back(row("operator/ all forms", pair, [](const Var& a, const Var& b) { return (a / b) / 0.7 + 3.0 / b; }));

  add_unary(cases, "neg", neg, draw_normal);
  add_unary(cases, "exp", exp, draw_normal);
  add_unary(cases, "log", log, positive);
  add_unary(cases, "sqrt", sqrt, positive);
  add_unary(cases, "square", square, draw_normal);
  add_unary(cases, "tanh", tanh, draw_normal);
  add_unary(cases, "sigmoid", sigmoid, draw_normal);
  add_unary(cases, "relu", relu, away_from_zero);
  add_unary(cases, "silu", silu, draw_normal);
  add_unary(cases, "gelu", gelu, draw_normal);
  add_unary(cases, "gelu_tanh", gelu_tanh, draw_normal);
  add_unary(cases, "abs", abs, away_from_zero);
  add_unary(cases, "sign", sign, away_from_zero);
  add_unary(cases, "expm1", expm1, draw_normal);
  add_unary(cases, "log1p", log1p, positive);
  add_unary(cases, "rsqrt", rsqrt, positive);
  add_unary(cases, "sin", sin, draw_normal);
  add_unary(cases, "cos", cos, draw_normal);
  add_unary(cases, "erf", erf, draw_normal);
  add_unary(
      cases, "affine", [](const Var& x) { return affine(x, -1.7, 0.3); }, draw_normal);
  add_unary(
      cases, "reciprocal", [](const Var& x) { return reciprocal(x, 0.6); }, away_from_zero);
  add_unary(
      cases, "clamp", [](const Var& x) { return clamp(x, -0.1, 0.1); }, away_from_zero);
  add_unary(
      cases, "leaky_relu", [](const Var& x) { return leaky_relu(x, 0.2); }, away_from_zero);
  add_unary(
      cases, "elu", [](const Var& x) { return elu(x, 0.7); }, away_from_zero);
  add_unary(
      cases, "softplus", [](const Var& x) { return softplus(x, 1.5); }, draw_normal);
  add_unary(
      cases, "cast to f64 and back", [](const Var& x) { return cast(square(cast(x, DType::f64)), x.dtype()); },
      draw_normal);
  add_unary(
      cases, "pow 0", [](const Var& x) { return pow(x, 0); }, draw_normal);
  add_unary(
      cases, "pow 3", [](const Var& x) { return pow(x, 3); }, draw_normal);
  add_unary(
      cases, "pow -2", [](const Var& x) { return pow(x, -2); }, away_from_zero);
  add_unary(
      cases, "pow 0.7", [](const Var& x) { return pow(x, 0.7); }, positive);
  return cases;
}

}  // namespace tapestry
