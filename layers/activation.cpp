#include "layers/activation.h"

#include <array>

namespace tapestry {

namespace {

struct ActivationEntry {
  Activation activation;
  std::string_view name;
  Var (*apply)(const Var&);
};

constexpr std::array<ActivationEntry, 6> kActivations = {{{Activation::relu, "relu", relu},
                                                          {Activation::gelu, "gelu", gelu},
                                                          {Activation::gelu_tanh, "gelu_tanh", gelu_tanh},
                                                          {Activation::silu, "silu", silu},
                                                          {Activation::tanh, "tanh", tanh},
                                                          {Activation::sigmoid, "sigmoid", sigmoid}}};

const ActivationEntry& entry(Activation activation) {
  for (const ActivationEntry& e : kActivations)
    if (e.activation == activation) return e;
  fail("activation: ", static_cast<int>(activation), " is not an Activation");
}

}  // namespace

Var apply(Activation activation, const Var& x) { return entry(activation).apply(x); }

Var apply(Activation activation, const Linear& layer, const Var& x) {
  if (activation != Activation::gelu && activation != Activation::gelu_tanh) return apply(activation, layer(x));
  return linear_gelu(x, layer.weight, layer.bias ? Var(*layer.bias) : Var(),
                     activation == Activation::gelu ? GeluForm::erf : GeluForm::tanh);
}

std::string_view name_of(Activation activation) { return entry(activation).name; }

Activation activation_from_name(std::string_view name) {
  std::string known;
  for (const ActivationEntry& e : kActivations) {
    if (e.name == name) return e.activation;
    known += text_of(known.empty() ? "" : ", ", e.name);
  }
  fail("activation: no activation is named '", name, "'; use one of ", known);
}

}  // namespace tapestry
