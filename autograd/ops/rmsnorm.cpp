#include "core/kernels/rmsnorm.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"

namespace tapestry {

Var rmsnorm(const Var& x, const Var& weight, double eps) {
  const Shape& s = x.shape();
  detail::check_row_norm("rmsnorm", x, {{"weight", weight}}, eps);
  Tensor y = empty(s, detail::normalised_dtype<"rmsnorm">(x.dtype()), x.device());
  Tensor rrms = empty({s.rows()}, accumulate_dtype(x.dtype()), x.device());
  TAP_DISPATCH(rmsnorm_forward, x.value(), weight.value(), eps, y, rrms);
  return record(
      "rmsnorm", y,
      [x = save(x), weight = save(weight), rrms](const Tensor& dy, Grad dx, Grad dweight) {
        TAP_DISPATCH(rmsnorm_backward, dy, x(), weight(), rrms, dx, dweight);
      },
      x, weight);
}

}  // namespace tapestry
