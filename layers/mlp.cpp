#include "layers/mlp.h"

namespace tapestry {

namespace {

std::int64_t hidden_width(const MlpConfig& config) {
  TAP_CHECK(config.width > 0, "mlp: width must be at least 1, not ", config.width);
  TAP_CHECK(config.hidden >= 0, "mlp: hidden must be at least 1, or 0 for 4 * width, not ", config.hidden);
  return config.hidden > 0 ? config.hidden : 4 * config.width;
}

}  // namespace

Mlp::Mlp(const MlpConfig& config, Rng& rng)
    : up(config.width, hidden_width(config), rng, config.bias),
      down(hidden_width(config), config.width, rng, config.bias),
      dropout(config.dropout),
      activation_(config.activation) {}

Var Mlp::operator()(const Var& x, const Var& residual) const {
  return project(down, dropout, apply(activation_, up, x), residual);
}

void Mlp::visit(Visitor& v) {
  v("up", up);
  v("down", down);
  v("dropout", dropout);
}

}  // namespace tapestry
