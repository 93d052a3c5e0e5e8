#include "layers/mlp.h"

#include <array>

namespace tapestry {

namespace {

struct ActivationEntry {
  Activation activation;
  std::string_view name;
  Var (*apply)(const Var&);
};

constexpr std::array<ActivationEntry, 4> kActivations = {{{Activation::relu, "relu", relu},
                                                          {Activation::gelu, "gelu", gelu},
                                                          {Activation::gelu_tanh, "gelu_tanh", gelu_tanh},
                                                          {Activation::silu, "silu", silu}}};

const ActivationEntry& entry(Activation activation) {
  for (const ActivationEntry& e : kActivations)
    if (e.activation == activation) return e;
  fail("activation: ", static_cast<int>(activation), " is not an Activation");
}

std::int64_t hidden_width(const MlpConfig& config) {
  TAP_CHECK(config.width > 0, "mlp: width must be at least 1, not ", config.width);
  TAP_CHECK(config.hidden >= 0, "mlp: hidden must be at least 1, or 0 for 4 * width, not ", config.hidden);
  return config.hidden > 0 ? config.hidden : 4 * config.width;
}

}  // namespace

Var apply(Activation activation, const Var& x) { return entry(activation).apply(x); }

std::string_view name_of(Activation activation) { return entry(activation).name; }

Activation activation_from_name(std::string_view name) {
  std::string known;
  for (const ActivationEntry& e : kActivations) {
    if (e.name == name) return e.activation;
    known += text_of(known.empty() ? "" : ", ", e.name);
  }
  fail("activation: no activation is named '", name, "'; use one of ", known);
}

Mlp::Mlp(const MlpConfig& config, Rng& rng)
    : up(config.width, hidden_width(config), rng, config.bias),
      down(hidden_width(config), config.width, rng, config.bias),
      dropout(config.dropout),
      activation_(config.activation) {}

Var Mlp::operator()(const Var& x) const { return dropout(down(apply(activation_, up(x)))); }

void Mlp::visit(Visitor& v) {
  v("up", up);
  v("down", down);
  v("dropout", dropout);
}

}  // namespace tapestry
