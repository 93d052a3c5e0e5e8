#include "core/kernels/rmsnorm.h"

#include "autograd/ops.h"

namespace tapestry {

Var rmsnorm(const Var& x, const Var& weight, double eps) {
  const Shape& s = x.shape();
  TAP_CHECK(s.rank() >= 1, "rmsnorm: x must have an axis to normalise over, not ", s, "; reshape it to [1]");
  TAP_CHECK(weight.shape() == Shape{s.back()}, "rmsnorm: x is ", s, ", so weight must be [", s.back(), "], not ",
            weight.shape());
  TAP_CHECK(eps >= 0, "rmsnorm: eps must not be negative, not ", eps);
  Tensor y = empty_like(x.value());
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
