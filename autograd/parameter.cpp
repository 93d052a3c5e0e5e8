#include "autograd/parameter.h"

namespace tapestry {

namespace {

// The gradient has the value's shape, dtype and device, and starts unset.
void reset_gradient(detail::ParameterState& state) {
  state.grad = GradSlot{};
  state.grad.shape = state.value.shape();
  state.grad.dtype = state.value.dtype();
  state.grad.device = state.value.device();
}

}  // namespace

Tensor detail::ParameterState::converted(const Tensor& of, DType dtype) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t version = of.storage().version();
  const bool fits = copy_ && copy_.dtype() == dtype && copy_.shape() == of.shape();
  if (fits && copied_ == of.raw_data() && copied_version_ == version) return copy_;
  copied_ = nullptr;
  if (fits && !copy_.storage().shared()) {
    copy_.copy_from(of);
  } else {
    copy_ = Tensor();
    const MemoryScope scope(MemoryCategory::parameters);
    copy_ = of.to(dtype);
  }
  copied_ = of.raw_data();
  copied_version_ = version;
  return copy_;
}

Parameter::Parameter(const Shape& shape, DType dtype)
    : Parameter([&] {
        const MemoryScope scope(MemoryCategory::parameters);
        return zeros(shape, dtype);
      }()) {}

Parameter::Parameter(Tensor value) : state_(std::make_shared<detail::ParameterState>()) {
  TAP_CHECK(value && is_floating(value.dtype()), "parameter: needs a floating tensor, not ",
            value ? name_of(value.dtype()) : "an empty handle");
  state_->value = std::move(value);
  reset_gradient(*state_);
}

const Tensor& Parameter::grad() const {
  TAP_CHECK(has_grad(), "parameter: ", shape(), " has no gradient; call backward first");
  return state_->grad.tensor;
}

void Parameter::set_trainable(bool trainable) {
  state_->trainable = trainable;
  if (trainable) return;
  state_->grad.set = false;
  if (!state_->grad.pinned) state_->grad.tensor = Tensor();
}

Parameter Parameter::clone() const {
  Parameter copy(value().clone());
  copy.set_trainable(trainable());
  return copy;
}

void Parameter::assign(const Tensor& value) {
  TAP_CHECK(value.shape() == shape(), "assign: the value is ", value.shape(), ", the parameter ", shape());
  const WriterScope writer("Parameter::assign");
  state_->value.copy_from(value);
}

void Parameter::to(DType dtype) {
  if (dtype == this->dtype()) return;
  TAP_CHECK(!packed(), "parameter: an optimizer holds it, so its dtype is fixed; create the optimizer afterwards");
  const MemoryScope scope(MemoryCategory::parameters);
  state_->value = state_->value.to(dtype);
  reset_gradient(*state_);
}

void Parameter::to(Device device) {
  if (device == state_->value.device()) return;
  TAP_CHECK(!packed(), "parameter: an optimizer holds it, so its device is fixed; create the optimizer afterwards");
  const MemoryScope scope(MemoryCategory::parameters);
  state_->value = state_->value.to(device);
  reset_gradient(*state_);
}

void tie(const Parameter& a, Parameter& b) {
  TAP_CHECK(a.shape() == b.shape() && a.dtype() == b.dtype(), "tie: parameters must be alike, not ", a.dtype(), " ",
            a.shape(), " and ", b.dtype(), " ", b.shape());
  TAP_CHECK(!b.packed() && !a.packed(), "tie: an optimizer holds a parameter; tie first, then create the optimizer");
  b.state_ = a.state_;
}

}  // namespace tapestry
