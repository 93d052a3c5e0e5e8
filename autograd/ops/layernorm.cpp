#include "core/kernels/layernorm.h"

#include "autograd/ops.h"

namespace tapestry {

Var layernorm(const Var& x, const Var& weight, const Var& bias, double eps, LayerNormForm form) {
  const Shape& s = x.shape();
  TAP_CHECK(s.rank() >= 1, "layernorm: x must have an axis to normalise over, not ", s, "; reshape it to [1]");
  TAP_CHECK(weight.shape() == Shape{s.back()}, "layernorm: x is ", s, ", so weight must be [", s.back(), "], not ",
            weight.shape());
  TAP_CHECK(bias.shape() == Shape{s.back()}, "layernorm: x is ", s, ", so bias must be [", s.back(), "], not ",
            bias.shape());
  TAP_CHECK(eps >= 0, "layernorm: eps must not be negative, not ", eps);
  Tensor y = empty_like(x.value());
  Tensor mean = empty({s.rows()}, accumulate_dtype(x.dtype()), x.device()), rstd = empty_like(mean);
  TAP_DISPATCH(layernorm_forward, x.value(), weight.value(), bias.value(), eps, y, mean, rstd, form);
  return record(
      "layernorm", y,
      [x = save(x), weight = save(weight), mean, rstd, form](const Tensor& dy, Grad dx, Grad dweight, Grad dbias) {
        TAP_DISPATCH(layernorm_backward, dy, x(), weight(), mean, rstd, dx, dweight, dbias, form);
      },
      x, weight, bias);
}

}  // namespace tapestry
