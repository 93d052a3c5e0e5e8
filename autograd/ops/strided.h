// What the ops that move elements share: layouts, and gradients that are one strided copy.
#pragma once

#include "autograd/ops.h"
#include "core/kernels/strided_copy.h"

namespace tapestry {

inline StridedLayout packed(const Shape& shape) { return {0, shape.strides()}; }

// target gets the elements of source, or adds them.
inline void strided_put(bool add, const Tensor& source, const StridedLayout& from, const Shape& shape,
                        const StridedLayout& to, Tensor& target) {
  if (add) {
    TAP_DISPATCH(strided_add, source, from, shape, to, target);
  } else {
    TAP_DISPATCH(strided_copy, source, from, shape, to, target);
  }
}

// dx, seen as `shape`, gets dy, which lies as `from` within its own tensor; every element of dx is covered.
inline void copy_to_grad(const Tensor& dy, const StridedLayout& from, const Shape& shape, Grad dx) {
  const bool add = dx.claim();
  strided_put(add, dy, from, shape, packed(shape), dx.tensor());
}

// The part of dx that `to` covers gets dy, the rest gets zeros.
inline void copy_into_part(const Tensor& dy, const StridedLayout& to, Grad dx) {
  if (!dx.claim()) dx.tensor().fill(0);
  TAP_DISPATCH(strided_add, dy, packed(dy.shape()), dy.shape(), to, dx.tensor());
}

// The number of elements over the axes before `axis`, and over `axis` and those after it.
inline std::int64_t extent_before(const Shape& shape, int axis) {
  std::int64_t count = 1;
  for (int i = 0; i < axis; ++i) count *= shape[i];
  return count;
}
inline std::int64_t extent_from(const Shape& shape, int axis) {
  std::int64_t count = 1;
  for (int i = axis; i < shape.rank(); ++i) count *= shape[i];
  return count;
}

// `shape` with one more axis in front of its `axis`; throws where that makes too many.
inline Shape insert_axis(const char* op, const Shape& shape, int axis, std::int64_t extent) {
  TAP_CHECK(shape.rank() < Shape::kMaxRank, op, ": the result would have more than ", Shape::kMaxRank, " axes, given ",
            shape);
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  const auto from = shape.dims();
  std::copy(from.begin(), from.begin() + axis, dims.begin());
  dims[static_cast<std::size_t>(axis)] = extent;
  std::copy(from.begin() + axis, from.end(), dims.begin() + axis + 1);
  return Shape(std::span<const std::int64_t>(dims.data(), from.size() + 1));
}

}  // namespace tapestry
