// How tests check functions on tensors without elements and on inputs of rank 0 and 1.
#pragma once

#include <doctest/doctest.h>

#include <functional>

#include "autograd/ops.h"
#include "tests/cases/make.h"
#include "tests/error_message.h"
#include "tests/row_testing.h"

namespace tapestry::testing {

using Inputs = std::span<const Var>;
using Function = std::function<Var(Inputs)>;

inline const std::vector<Shape> kEmpty{{0}, {0, 3}, {3, 0}, {2, 0, 3}};
inline const std::vector<Shape> kLow{{}, {1}, {3}};  // rank 0 and 1

inline std::vector<Shape> both() {
  std::vector<Shape> all = kEmpty;
  all.insert(all.end(), kLow.begin(), kLow.end());
  return all;
}

inline std::vector<double> repeated(double value, const Shape& shape) {
  return std::vector<double>(static_cast<std::size_t>(shape.numel()), value);
}

// Gradients of sum(f(inputs)), written over NaN, or added to `before`.
inline std::vector<Tensor> gradients(const Function& f, const std::vector<Tensor>& inputs, double before) {
  std::vector<GradSlot> slots(inputs.size());
  Tape tape;
  std::vector<Var> watched;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    slots[i] = {full(x.shape(), before, x.dtype()), x.shape(), x.dtype(), Device::cpu, !std::isnan(before), true};
    watched.push_back(tape.watch(x, Grad(&slots[i])));
  }
  const Var y = f(watched);
  REQUIRE(y.tracked());
  tape.backward(y, full(y.shape(), 1, y.dtype()));
  std::vector<Tensor> result;
  for (const GradSlot& slot : slots) {
    CHECK(slot.set);
    result.push_back(slot.tensor);
  }
  return result;
}

// f gives `right`, its gradients of both writes agree, and all checks of a row pass. An empty result passes back zeros.
inline void check(const std::string& name, const std::vector<Tensor>& inputs, const Shape& shape,
                  const std::vector<double>& right, const Function& f) {
  CAPTURE(name);
  for (const Tensor& x : inputs) CAPTURE(x.shape());
  const std::vector<Var> constants(inputs.begin(), inputs.end());
  const Var y = f(constants);
  CHECK(y.shape() == shape);
  check_close(y.value(), right, 1e-12);
  const std::vector<Tensor> first = gradients(f, inputs, kNaN), second = gradients(f, inputs, 10);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    CHECK(first[i].shape() == inputs[i].shape());
    if (y.numel() == 0) check_close(first[i], repeated(0, inputs[i].shape()), 0);
    std::vector<double> sum = testing::to_doubles(first[i]);
    for (double& v : sum) v += 10;
    check_close(second[i], sum, 1e-12);
  }
  Case c;
  c.name = name;
  c.inputs = inputs;
  c.function = [f](Inputs x) { return std::vector<Var>{f(x)}; };
  bool finite = true;
  for (const double v : right) finite &= std::isfinite(v);
  if (!finite) return;
  const CaseResult result = run_case(c);
  CHECK_MESSAGE(result.passed, result.line, "\n", result.details);
}
inline void check(const std::string& name, const std::vector<Tensor>& inputs, const Shape& shape, double value,
                  const Function& f) {
  check(name, inputs, shape, repeated(value, shape), f);
}
inline void check(const std::string& name, const std::vector<Tensor>& inputs, const Shape& shape, const Function& f) {
  check(name, inputs, shape, 0, f);
}

// f throws an Error that begins with the op's name.
inline void check_throws(const std::string& op, const std::function<void()>& f) {
  const std::string text = message_of(f);
  CHECK_MESSAGE(text.rfind(op + ": ", 0) == 0, op, " gave: ", text);
}

inline Tensor none(const Shape& shape) { return zeros(shape, DType::f64); }
inline Tensor mask_of(const Shape& shape) { return full(shape, 1, DType::u8); }
inline Tensor ids_of(const Shape& shape) { return zeros(shape, DType::i64); }

}  // namespace tapestry::testing
