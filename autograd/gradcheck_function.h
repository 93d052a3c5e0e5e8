// Used by gradcheck: a function together with the point at which it is checked. It can be evaluated there and nearby
// without a tape, and differentiated by backward into prepared gradient memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "autograd/gradcheck.h"
#include "core/random.h"

namespace tapestry::detail {

class CheckedFunction {
 public:
  struct Leaf {
    std::string name;
    Parameter* parameter;  // the input or the module's own
    const Tensor& value() const { return parameter->value(); }
    // The unit in which element `index` is moved: max(1, |x|).
    double unit(std::int64_t index) const { return std::max(1.0, std::abs(value().at(index))); }
  };
  // Each holds one double for every element of all outputs, in order.
  using Outputs = std::vector<double>;
  // One vector for each leaf.
  using Gradients = std::vector<std::vector<double>>;
  // The outputs at -2, -1, 1 and 2 steps from the point.
  struct Stencil {
    Outputs minus2, minus1, plus1, plus2;
  };
  // What the gradient memory holds before backward: NaN or zeros that the first write overwrites, or random values of
  // an open accumulation window that it adds to.
  enum class Memory { nan, zeros, window };

  CheckedFunction(const GradcheckFunction& function, Module* module, const std::vector<Tensor>& inputs,
                  const GradcheckOptions& options);

  const std::vector<Leaf>& leaves() const { return leaves_; }
  std::size_t input_count() const { return inputs_.size(); }
  const std::vector<std::string>& frozen() const { return frozen_; }  // parameters that are constants here

  Outputs evaluate() const;
  // With a leaf moved along `direction`, or one element of it, by `step` units.
  Stencil evaluate_around(const Leaf& leaf, const std::vector<double>& direction, double step) const;
  Stencil evaluate_around(const Leaf& leaf, std::int64_t index, double step) const;

  // The result under `tape` with the inputs watched there.
  std::vector<Var> record_on(Tape& tape) const;
  // The gradient of <outputs, cotangent> as left in memory.
  Gradients gradients(const Tensor& cotangent, Memory before = Memory::nan) const;
  // What Memory::window holds.
  static Tensor window(const Leaf& leaf, std::size_t index);

  static Outputs flatten(const std::vector<Var>& outputs);

 private:
  std::vector<Var> call(std::span<const Var> x) const;
  template <class Move>
  Stencil around(const Leaf& leaf, Move move) const;

  const GradcheckFunction& function_;
  bool allow_f32_;
  std::vector<Parameter> inputs_;
  std::vector<Leaf> leaves_;
  std::vector<std::string> frozen_;
};

}  // namespace tapestry::detail
