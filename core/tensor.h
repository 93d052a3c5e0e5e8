// Tensor: a value handle of contiguous, typed, shaped memory. Copies share the storage; clone() copies the elements.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/memory.h"
#include "core/shape.h"

namespace tapestry {

class Tensor {
 public:
  Tensor() = default;  // empty handle: no storage
  Tensor(Storage storage, std::int64_t byte_offset, const Shape& shape, DType dtype)
      : storage_(std::move(storage)), byte_offset_(byte_offset), shape_(shape), dtype_(dtype) {}

  explicit operator bool() const { return static_cast<bool>(storage_); }
  const Shape& shape() const { return shape_; }
  std::int64_t numel() const { return shape_.numel(); }
  std::int64_t bytes() const { return numel() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_.device(); }
  const Storage& storage() const { return storage_; }
  std::int64_t byte_offset() const { return byte_offset_; }

  // The elements in row-major order. T must be the dtype's C++ type (checked). mutable_data raises the version.
  template <class T>
  const T* data() const {
    check_type(dtype_of<T>);
    return reinterpret_cast<const T*>(raw());
  }
  template <class T>
  T* mutable_data() {
    check_type(dtype_of<T>);
    storage_.raise_version();
    return reinterpret_cast<T*>(raw());
  }
  const std::byte* raw_data() const { return raw(); }
  std::byte* mutable_raw_data() {
    storage_.raise_version();
    return raw();
  }

  // Views: the result shares this storage.
  Tensor reshape(const Shape& shape) const;                   // one extent may be -1
  Tensor rows(std::int64_t first, std::int64_t count) const;  // of the leading axis

  Tensor clone() const;
  Tensor to(DType dtype) const;  // shares the storage if the dtype is already right
  Tensor to(Device device) const;
  double item() const;                 // the value of a one-element tensor, as double
  double at(std::int64_t flat) const;  // element by row-major index, as double; for tests and printing
  template <class T>
  std::vector<T> to_vector() const {
    return {data<T>(), data<T>() + numel()};
  }

  void fill(double value);
  void copy_from(const Tensor& source);  // equal shapes; converts the dtype

 private:
  std::byte* raw() const { return storage_.data() + byte_offset_; }
  void check_type(DType asked) const {
    TAP_CHECK(storage_, "tensor: the handle is empty");
    TAP_CHECK(asked == dtype_, "tensor: holds ", dtype_, ", but was read or written as ", asked);
  }

  Storage storage_;
  std::int64_t byte_offset_ = 0;
  Shape shape_;
  DType dtype_ = DType::f32;
};

Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu);  // uninitialised
Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu);
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = Device::cpu);
inline Tensor empty_like(const Tensor& t) { return empty(t.shape(), t.dtype(), t.device()); }
inline Tensor zeros_like(const Tensor& t) { return zeros(t.shape(), t.dtype(), t.device()); }
inline Tensor scalar(double value, DType dtype = DType::f32) { return full({}, value, dtype); }

// Copies `values`; there must be shape.numel() of them.
template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape) {
  TAP_CHECK(static_cast<std::int64_t>(values.size()) == shape.numel(), "from_span: ", values.size(),
            " values do not fill shape ", shape);
  Tensor t = empty(shape, dtype_of<T>);
  std::copy(values.begin(), values.end(), t.mutable_data<T>());
  return t;
}
template <class T>
Tensor from_values(const std::vector<T>& values, const Shape& shape) {
  return from_span(std::span<const T>(values), shape);
}
// tensor({1, 2, 3, 4}, {2, 2}): floating values written out, as f32 unless asked otherwise.
Tensor tensor(std::initializer_list<double> values, const Shape& shape, DType dtype = DType::f32);
Tensor tensor(std::initializer_list<double> values);  // rank 1

bool same_bits(const Tensor& a, const Tensor& b);  // equal shape, dtype and bytes
std::string to_text(const Tensor& t);              // "[2, 3] f32: 1, 2, 3, ..." for messages and debugging

}  // namespace tapestry
