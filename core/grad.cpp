#include "core/grad.h"

#include "core/kernels/strided_copy.h"

namespace tapestry {

namespace {
StridedLayout packed(const Shape& shape) { return {0, shape.strides()}; }
}  // namespace

bool Grad::claim() const {
  GradSlot& slot = *slot_;
  count_write();
  const bool add = std::exchange(slot.set, true);
  if (!slot.tensor) {
    slot.tensor = empty(slot.shape, slot.dtype, slot.device);
  } else if (!slot.pinned && slot.tensor.storage().shared()) {
    // The storage was handed over by pass() and is still somebody else's.
    slot.tensor = add ? slot.tensor.clone() : empty(slot.shape, slot.dtype, slot.device);
  }
  return add;
}

bool Grad::claim_over(const Tensor& spent) const {
  GradSlot& slot = *slot_;
  if (slot.tensor || !spent || spent.storage().shared() || spent.shape() != slot.shape || spent.dtype() != slot.dtype)
    return claim();
  count_write();
  slot.tensor = spent;
  slot.set = true;
  return false;
}

void Grad::pass(const Tensor& dy) const {
  GradSlot& slot = *slot_;
  const bool same_type = dy.dtype() == slot.dtype, one_is_16bit = is_16bit(dy.dtype()) || is_16bit(slot.dtype);
  TAP_CHECK(dy.shape() == slot.shape && (same_type || one_is_16bit), "pass: the gradient must be ", slot.dtype, " ",
            slot.shape, ", not ", dy.dtype(), " ", dy.shape());
  if (!slot.set && !slot.pinned && same_type) {
    slot.tensor = dy;
    slot.set = true;
    count_write();
    return;
  }
  const StridedLayout layout = packed(slot.shape);
  if (claim()) {
    TAP_DISPATCH(strided_add, dy, layout, slot.shape, layout, slot.tensor);
  } else {
    TAP_DISPATCH(strided_copy, dy, layout, slot.shape, layout, slot.tensor);
  }
}

}  // namespace tapestry
