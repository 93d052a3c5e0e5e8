#include "layers/layernorm.h"

#include "layers/init.h"

namespace tapestry {

LayerNorm::LayerNorm(std::int64_t channels, double eps, LayerNormForm form)
    : weight({channels}), bias({channels}), eps_(eps), form_(form) {
  TAP_CHECK(channels > 0, "layernorm: channels must be at least 1, not ", channels);
  TAP_CHECK(eps >= 0, "layernorm: eps must be 0 or more, not ", eps);
  init::constant(weight, 1);
}

LayerNorm::LayerNorm(std::int64_t channels, LayerNormForm form)
    : LayerNorm(channels, form == LayerNormForm::std_plus_eps ? 1e-6 : 1e-5, form) {}

Var LayerNorm::operator()(const Var& x) const { return layernorm(x, weight, bias, eps_, form_); }

void LayerNorm::visit(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
}

}  // namespace tapestry
