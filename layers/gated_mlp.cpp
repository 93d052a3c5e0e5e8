#include "layers/gated_mlp.h"

namespace tapestry {

namespace {

std::int64_t hidden_width(const GatedMlpConfig& config) {
  TAP_CHECK(config.width > 0, "gated_mlp: width must be at least 1, not ", config.width);
  TAP_CHECK(config.hidden >= 0, "gated_mlp: hidden must be at least 1, or 0 for 8/3 width, not ", config.hidden);
  return config.hidden > 0 ? config.hidden : (config.width * 8 / 3 + 7) / 8 * 8;
}

}  // namespace

GatedMlp::GatedMlp(const GatedMlpConfig& config, Rng& rng)
    : gate(config.width, hidden_width(config), rng, config.bias),
      up(config.width, hidden_width(config), rng, config.bias),
      down(hidden_width(config), config.width, rng, config.bias),
      dropout(config.dropout),
      activation_(config.activation) {}

Var GatedMlp::operator()(const Var& x) const { return dropout(down(apply(activation_, gate(x)) * up(x))); }

void GatedMlp::visit(Visitor& v) {
  v("gate", gate);
  v("up", up);
  v("down", down);
  v("dropout", dropout);
}

}  // namespace tapestry
