#include "core/kernels/softmax.h"

#include "autograd/ops.h"

namespace tapestry {

Var softmax(const Var& x) {
  TAP_CHECK(x.shape().rank() >= 1, "softmax: works over the last axis, but x is a scalar");
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(softmax_forward, x.value(), y);
  return record(
      "softmax", y, [y = save(y)](const Tensor& dy, Grad dx) { TAP_DISPATCH(softmax_backward, dy, y(), dx); }, x);
}

Var log_softmax(const Var& x) {
  TAP_CHECK(x.shape().rank() >= 1, "log_softmax: works over the last axis, but x is a scalar");
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(log_softmax_forward, x.value(), y);
  return record(
      "log_softmax", y, [y = save(y)](const Tensor& dy, Grad dx) { TAP_DISPATCH(log_softmax_backward, dy, y(), dx); },
      x);
}

}  // namespace tapestry
