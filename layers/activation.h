// Activation functions by name, for configurations, and as a layer, for Sequential.
#pragma once

#include "autograd/module.h"
#include "autograd/ops.h"
#include "layers/linear.h"

namespace tapestry {

// gelu is the erf form, gelu_tanh GPT-2's tanh form.
enum class Activation { relu, gelu, gelu_tanh, silu, tanh, sigmoid };
Var apply(Activation activation, const Var& x);
Var apply(Activation activation, const Linear& layer, const Var& x);  // of layer(x), in one op where there is one
Activation activation_from_name(std::string_view name);
std::string_view name_of(Activation activation);

class ActivationLayer : public Module {
 public:
  explicit ActivationLayer(Activation activation) : activation_(activation) {}
  Var operator()(const Var& x) const { return apply(activation_, x); }
  void visit(Visitor&) override {}
  std::string_view kind() const override { return name_of(activation_); }

 private:
  Activation activation_;
};

}  // namespace tapestry
