#include "core/kernels/layernorm.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"

namespace tapestry {

Var layernorm(const Var& x, const Var& weight, const Var& bias, double eps, LayerNormForm form) {
  const Shape& s = x.shape();
  detail::check_row_norm("layernorm", x, {{"weight", weight}, {"bias", bias}}, eps);
  Tensor y = empty(s, detail::normalised_dtype<"layernorm">(x.dtype()), x.device());
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
