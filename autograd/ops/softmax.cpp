#include "core/kernels/softmax.h"

#include "autograd/ops.h"
#include "autograd/ops/mask.h"
#include "autograd/ops/operands.h"

namespace tapestry {

namespace {

void check(const char* op, const Var& x, const Var& mask) {
  TAP_CHECK(x.shape().rank() >= 1, op, ": works over the last axis, but x is a scalar");
  if (!mask) return;
  TAP_CHECK(mask.shape().rank() <= x.shape().rank() && broadcast(op, mask.shape(), x.shape()) == x.shape(), op,
            ": the mask is ", mask.shape(), ", which does not broadcast to x ", x.shape());
  TAP_CHECK(mask.dtype() == DType::u8 || mask.dtype() == x.dtype(), op, ": the mask must be u8 or ", x.dtype(),
            ", not ", mask.dtype());
  TAP_CHECK(mask.dtype() == DType::u8 || mask.tracked() || !detail::looks_like_keep_mask(mask.value()), op,
            ": a float mask is added to x, but this one holds only 0 and 1; for nonzero = keep use a u8 mask");
}

}  // namespace

Var softmax(const Var& x_, const Var& mask_) {
  const auto [x, mask] = detail::autocast<"softmax">(x_, mask_);
  check("softmax", x, mask);
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(softmax_forward, x.value(), mask.value(), y);
  return record(
      "softmax", y,
      [y = save(y), mask = save(mask)](const Tensor& dy, Grad dx, Grad dmask) {
        TAP_DISPATCH(softmax_backward, dy, y(), mask(), dx, dmask);
      },
      x, mask);
}

Var log_softmax(const Var& x_, const Var& mask_) {
  const auto [x, mask] = detail::autocast<"log_softmax">(x_, mask_);
  check("log_softmax", x, mask);
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(log_softmax_forward, x.value(), mask.value(), y);
  return record(
      "log_softmax", y,
      [y = save(y), mask = save(mask)](const Tensor& dy, Grad dx, Grad dmask) {
        TAP_DISPATCH(log_softmax_backward, dy, y(), mask(), dx, dmask);
      },
      x, mask);
}

}  // namespace tapestry
