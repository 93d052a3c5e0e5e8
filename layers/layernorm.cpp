#include "layers/layernorm.h"

#include "layers/init.h"

namespace tapestry {

LayerNorm::LayerNorm(std::int64_t channels, double eps) : weight({channels}), bias({channels}), eps_(eps) {
  TAP_CHECK(channels > 0, "layernorm: channels must be at least 1, not ", channels);
  TAP_CHECK(eps >= 0, "layernorm: eps must be 0 or more, not ", eps);
  init::constant(weight, 1);
}

Var LayerNorm::operator()(const Var& x) const { return layernorm(x, weight, bias, eps_); }

void LayerNorm::visit(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
}

}  // namespace tapestry
