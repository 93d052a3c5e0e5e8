// Grad: where a backward function writes the gradient of one of its inputs.
#pragma once

#include "core/tensor.h"

namespace tapestry {

// The gradient being gathered for one value. The tape and Parameter own these; kernels see them through Grad.
struct GradSlot {
  Tensor tensor;  // allocated by the first claim
  Shape shape;    // of the value, and so of the gradient
  DType dtype = DType::f32;
  Device device = Device::cpu;
  bool set = false;     // false: the next write assigns, true: it adds
  bool pinned = false;  // the tensor lives in a flat buffer and must not be replaced
};

class Grad {
 public:
  Grad() = default;
  // `writes` counts claims and passes, for whoever checks that there was exactly one.
  explicit Grad(GradSlot* slot, std::uint8_t* writes = nullptr) : slot_(slot), writes_(writes) {}

  // False where nobody wants this gradient: skip the work.
  explicit operator bool() const { return slot_ != nullptr; }

  const Shape& shape() const { return slot_->shape; }
  DType dtype() const { return slot_->dtype; }

  // Call exactly once, before writing: true means add to what data() holds, false means overwrite every element
  // (the memory is not initialised).
  [[nodiscard]] bool claim() const;
  // The same, but a gradient that has no memory yet takes over that of `spent`, a saved value or upstream gradient of
  // equal shape and dtype that nobody else holds and the caller is done with: for kernels that read each element of it
  // no later than they write that element of the gradient.
  [[nodiscard]] bool claim_over(const Tensor& spent) const;
  template <class T>
  T* data() const {
    return slot_->tensor.mutable_data<T>();
  }
  Tensor& tensor() const { return slot_->tensor; }
  GradSlot* slot() const { return slot_; }  // for a tape that gathers into it

  // Instead of claim(): the gradient is `dy` itself (equal shape). Shares the storage where it can; a later write
  // copies first. A dy of another floating type, as of the narrower operand of a sum, is rounded or widened to the
  // gradient's.
  void pass(const Tensor& dy) const;

 private:
  void count_write() const {
    if (writes_) ++*writes_;
  }
  GradSlot* slot_ = nullptr;
  std::uint8_t* writes_ = nullptr;
};

}  // namespace tapestry
