// The shape of a tensor: up to six extents stored inline, no heap.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/error.h"

namespace tapestry {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;  // rank 0: one element
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(
      std::span<const std::int64_t> dims);  // throws above rank 6, for a negative extent and if numel overflows

  int rank() const { return rank_; }
  std::int64_t numel() const { return numel_; }
  std::int64_t operator[](int axis) const { return dims_[axis < 0 ? axis + rank_ : axis]; }  // -1 is the last axis
  std::int64_t back() const { return rank_ ? dims_[rank_ - 1] : 1; }
  std::int64_t rows() const;  // product of all extents but the last; 1 for rank 0 and 1
  std::span<const std::int64_t> dims() const { return {dims_.data(), static_cast<std::size_t>(rank_)}; }
  std::array<std::int64_t, kMaxRank> strides() const;  // row-major, in elements

  // `axis` in [0, rank), counting negative values from the end; throws and names `op` otherwise.
  int axis(std::string_view op, int axis) const;
  Shape with(int axis, std::int64_t extent) const;  // the same shape with one extent replaced
  Shape with_back(std::int64_t extent) const { return with(-1, extent); }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a.dims_[i] != b.dims_[i]) return false;
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  std::int64_t numel_ = 1;
  int rank_ = 0;
};

std::string to_text(const Shape& shape);  // "[2, 3]"
std::string divisors(std::int64_t n);     // "1, 2, 4, 8, 16, ...", the first of them, for messages

// A few axis numbers, stored inline: {0, 2}, or all that a function takes.
class Axes {
 public:
  Axes(std::initializer_list<int> axes) : Axes(std::span<const int>(axes.begin(), axes.size())) {}
  explicit Axes(std::span<const int> axes) : size_(axes.size()) {
    TAP_CHECK(size_ <= Shape::kMaxRank, "axes: at most ", Shape::kMaxRank, " can be named, not ", size_);
    for (std::size_t i = 0; i < size_; ++i) axes_[i] = axes[i];
  }
  std::size_t size() const { return size_; }
  const int* begin() const { return axes_.data(); }
  const int* end() const { return axes_.data() + size_; }
  int& operator[](std::size_t i) { return axes_[i]; }
  int operator[](std::size_t i) const { return axes_[i]; }

 private:
  std::array<int, Shape::kMaxRank> axes_{};
  std::size_t size_ = 0;
};

// The NumPy broadcast of two shapes; throws and names `op` where they do not fit.
Shape broadcast(std::string_view op, const Shape& a, const Shape& b);

// What a reduction of `shape` over `axes` (none given means all) leaves; throws and names `op` for an axis that is out
// of range or given twice.
struct ReducedShape {
  Shape kept, result;  // with the reduced axes as 1, and as the caller sees it
};
ReducedShape reduce_shape(std::string_view op, const Shape& shape, const Axes& axes, bool keepdim);

}  // namespace tapestry
