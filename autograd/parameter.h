// Parameter: a trainable tensor with its gradient. Move-only; tie() shares one, clone() copies one.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "core/grad.h"

namespace tapestry {

// Whoever packs parameters into flat buffers (an optimizer). Told when a backward pass failed.
class ParameterPack {
 public:
  virtual ~ParameterPack() = default;
  virtual void unset_gradients() noexcept = 0;
};

namespace detail {
struct ParameterState {
  Tensor value;
  GradSlot grad;                       // grad.set is the {unset, set} flag of the accumulation window
  std::atomic<std::uint64_t> leaf{0};  // (tape epoch << 24) | node: the leaf on the tape that used it last
  ParameterPack* pack = nullptr;
  bool trainable = true;
  double loss_scale = 1;  // of the loss that the gradient belongs to; not 1 where a GradScaler made it

  void unset_grad() {
    grad.set = false;
    loss_scale = 1;
  }

  // `of`, which is the value, in another dtype: the last copy unless the value has changed since. Any thread may call.
  Tensor converted(const Tensor& of, DType dtype);

 private:
  std::mutex mutex_;
  Tensor copy_;
  const std::byte* copied_ = nullptr;  // where the value lay, and its version: together they tell contents apart
  std::uint32_t copied_version_ = 0;
};
}  // namespace detail

class Parameter {
 public:
  explicit Parameter(const Shape& shape, DType dtype = DType::f32);  // zeros
  explicit Parameter(Tensor value);
  Parameter(Parameter&&) noexcept = default;
  Parameter& operator=(Parameter&&) noexcept = default;

  const Tensor& value() const { return state_->value; }
  const Shape& shape() const { return state_->value.shape(); }
  DType dtype() const { return state_->value.dtype(); }
  std::int64_t numel() const { return state_->value.numel(); }
  // Raised by every in-place change; caches of converted copies compare it.
  std::uint32_t version() const { return state_->value.storage().version(); }

  bool has_grad() const { return state_->grad.set; }
  const Tensor& grad() const;                 // throws unless has_grad()
  void zero_grad() { state_->unset_grad(); }  // the next backward assigns

  // A frozen Parameter is a constant on tapes from now on, has no gradient, and so is left alone by optimizers.
  bool trainable() const { return state_->trainable; }
  void set_trainable(bool trainable);

  void assign(const Tensor& value);  // copies the elements in place; equal shapes
  Tensor& mutable_value() { return state_->value; }
  Parameter clone() const;
  // Replace the value by one of another dtype or device and forget the gradient. Throw once an optimizer packed it.
  void to(DType dtype);
  void to(Device device);

  bool packed() const { return state_->pack != nullptr; }
  bool same_as(const Parameter& other) const { return state_ == other.state_; }
  const std::shared_ptr<detail::ParameterState>& state() const { return state_; }

  // From now on `b` is `a`: one value, one gradient, counted, saved and updated once. Shapes must be equal.
  friend void tie(const Parameter& a, Parameter& b);

 private:
  std::shared_ptr<detail::ParameterState> state_;
};

}  // namespace tapestry
