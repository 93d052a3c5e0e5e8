#include "core/kernels/linear.h"

#include "autograd/ops.h"

namespace tapestry {

Var linear(const Var& x, const Var& weight, const Var& bias) {
  const Shape &s = x.shape(), &w = weight.shape();
  TAP_CHECK(s.rank() >= 1 && w.rank() == 2 && w[0] == s.back(), "linear: x is ", s, ", so weight must be [", s.back(),
            ", out], not ", w);
  TAP_CHECK(!bias || bias.shape() == Shape{w[1]}, "linear: weight is ", w, ", so bias must be [", w[1], "], not ",
            bias.shape());
  TAP_CHECK(x.dtype() == weight.dtype() && (!bias || bias.dtype() == x.dtype()), "linear: x is ", x.dtype(),
            ", but weight is ", weight.dtype(), "; all operands must have one dtype");
  Tensor y = empty(s.with_back(w[1]), x.dtype(), x.device());
  TAP_DISPATCH(linear_forward, x.value(), weight.value(), bias.value(), y);
  return record(
      "linear", y,
      [x = save(x), weight = save(weight)](const Tensor& dy, Grad dx, Grad dweight, Grad dbias) {
        TAP_DISPATCH(linear_backward, dy, x(), weight(), dx, dweight, dbias);
      },
      x, weight, bias);
}

}  // namespace tapestry
