// Pointwise functions: every unary op at four sizes, every binary op with and without broadcasting.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

using Unary = Var (*)(const Var&);
using Binary = Var (*)(const Var&, const Var&);
using Draw = Tensor (*)(const Shape&, std::uint64_t);

Tensor draw_normal(const Shape& shape, std::uint64_t stream) { return normal(shape, stream); }

void add_unary(std::vector<Case>& cases, const std::string& name, Unary f, Draw draw) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{31}, Shape{3, 11}, Shape{2, 0}, Shape{7, 2003}})
    cases.push_back(row(text_of(name, " ", shape), {draw(shape, 1)}, f));
}

void add_binary(std::vector<Case>& cases, const std::string& name, Binary f) {
  const std::pair<Shape, Shape> shapes[] = {
      {{1}, {1}},       {{31}, {31}},       {{3, 11}, {3, 11}},   {{2, 1}, {1, 3}},       {{1}, {5, 4}},
      {{5, 4}, {}},     {{4, 1}, {1, 4}},   {{2, 3, 4}, {3, 1}},  {{33}, {2, 33}},        {{2, 1, 3, 1}, {5, 1, 2}},
      {{0, 3}, {1, 3}}, {{61, 257}, {257}}, {{61, 1}, {61, 257}}, {{61, 257}, {61, 257}},
  };
  for (const auto& [a, b] : shapes)
    cases.push_back(row(text_of(name, " ", a, " ", b), {draw_normal(a, 1), away_from_zero(b, 2)}, f));
}

}  // namespace

std::vector<Case> pointwise_cases() {
  std::vector<Case> cases;
  add_binary(cases, "add", add);
  add_binary(cases, "sub", sub);
  add_binary(cases, "mul", mul);
  add_binary(cases, "div", div);
  for (const Shape& shape : {Shape{1}, Shape{33}, Shape{7, 2003}}) {
    const std::vector<Tensor> x{normal(shape, 1)};
    cases.push_back(row(text_of("scale ", shape), x, [](const Var& v) { return scale(v, -1.7); }));
    cases.push_back(row(text_of("add_scalar ", shape), x, [](const Var& v) { return add_scalar(v, 0.3); }));
  }
  const std::vector<Tensor> pair{normal({3, 5}, 1), away_from_zero({5}, 2)};
  cases.push_back(row("operator+ all forms", pair, [](const Var& a, const Var& b) { return (a + b) + 0.7; }));
  cases.push_back(row("operator- all forms", pair, [](const Var& a, const Var& b) { return -(a - b) - 0.7; }));
  cases.push_back(row("operator* all forms", pair, [](const Var& a, const Var& b) { return 3.0 * (a * b) * 0.7; }));
  cases.push_back(row("operator/ all forms", pair, [](const Var& a, const Var& b) { return (a / b) / 0.7; }));

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
  return cases;
}

}  // namespace tapestry
