// How a kernel that computes in float reads and writes f16 and bf16 itself, without another instantiation: rows or
// blocks come and go through Source and Target, which hand out the tensor's own memory where it holds T and a buffer in
// f32 where it holds 16 bits. What is small, or summed over rows, is converted whole (Tensor::to, Widened).
#pragma once

#include <vector>

#include "core/kernels/convert.h"
#include "core/tensor.h"

namespace tapestry::cpu {

// `count` rows of n elements in memory of this thread, kept for the next call, or null where none are needed. All users
// share it: nothing that is called meanwhile may use it too.
template <class T>
class RowBuffers {
 public:
  RowBuffers(bool needed, std::int64_t count, std::int64_t n) : n_(n) {
    if (!needed) return;
    static thread_local std::vector<T> memory;
    if (memory.size() < static_cast<std::size_t>(count * n)) memory.resize(static_cast<std::size_t>(count * n));
    data_ = memory.data();
  }
  T* operator[](std::int64_t row) const { return data_ ? data_ + row * n_ : nullptr; }

 private:
  T* data_ = nullptr;
  std::int64_t n_;
};

// A small tensor in whole: 16 bits as f32, all else as it is (and data<T>() checks what that is).
inline Tensor widened(const Tensor& t) { return t && is_16bit(t.dtype()) ? t.to(DType::f32) : t; }

// Elements that are read as T: their own type is T or, with float, 16 bits wide.
template <class T>
class Source {
 public:
  Source(const void* data, DType dtype) : data_(static_cast<const std::byte*>(data)), dtype_(dtype) {}
  explicit Source(const Tensor& t) : Source(t.raw_data(), t.dtype()) {
    if (!std::is_same_v<T, float> || !narrow()) (void)t.data<T>();  // checks the type
  }
  bool narrow() const { return is_16bit(dtype_); }

  // n elements from `first` on, in place or in `buffer`.
  const T* read(std::int64_t first, std::int64_t n, T* buffer) const {
    if constexpr (std::is_same_v<T, float>) {
      if (narrow()) {
        widen(dtype_, data_ + 2 * first, buffer, n);
        return buffer;
      }
    }
    return reinterpret_cast<const T*>(data_) + first;
  }

 private:
  const std::byte* data_;
  DType dtype_;
};

// The same for elements that are written, or added to.
template <class T>
class Target {
 public:
  Target(void* data, DType dtype) : data_(static_cast<std::byte*>(data)), dtype_(dtype) {}
  explicit Target(Tensor& t) : Target(t.mutable_raw_data(), t.dtype()) {
    if (!std::is_same_v<T, float> || !narrow()) (void)t.data<T>();
  }
  bool narrow() const { return is_16bit(dtype_); }

  // Where to write n elements from `first` on; with `add` it holds what is there. close() stores what is in the buffer.
  T* open(std::int64_t first, std::int64_t n, bool add, T* buffer) const {
    if constexpr (std::is_same_v<T, float>) {
      if (narrow()) {
        if (add) widen(dtype_, data_ + 2 * first, buffer, n);
        return buffer;
      }
    }
    return reinterpret_cast<T*>(data_) + first;
  }
  void close(std::int64_t first, std::int64_t n, const T* buffer) const {
    if constexpr (std::is_same_v<T, float>)
      if (narrow()) tapestry::cpu::narrow(dtype_, buffer, data_ + 2 * first, n);
  }

 private:
  std::byte* data_;
  DType dtype_;
};

}  // namespace tapestry::cpu
