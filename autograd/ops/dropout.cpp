#include "core/kernels/dropout.h"

#include "autograd/ops.h"

namespace tapestry {

Var dropout(const Var& x, double p, RandomKey key) {
  TAP_CHECK(p >= 0 && p <= 1, "dropout: p must be in [0, 1], not ", p);
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(dropout_forward, x.value(), p, key, y);
  return record(
      "dropout", y, [p, key](const Tensor& dy, Grad dx) { TAP_DISPATCH(dropout_backward, dy, p, key, dx); }, x);
}

}  // namespace tapestry
