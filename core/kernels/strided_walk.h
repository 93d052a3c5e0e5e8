// Several tensors of one shape, each with strides of its own, walked together: rows along the innermost axis, and a
// cursor over all the other axes. What broadcasting, reductions and strided copies have in common.
#pragma once

#include <array>
#include <cstdint>

#include "core/shape.h"

namespace tapestry {

using Strides = std::array<std::int64_t, Shape::kMaxRank>;

// Row-major strides of `operand` seen as `shape`, aligned at the last axis: 0 along the axes that it broadcasts.
inline Strides broadcast_strides(const Shape& operand, const Shape& shape) {
  const Strides own = operand.strides();
  Strides strides{};
  const int lead = shape.rank() - operand.rank();
  for (int axis = 0; axis < operand.rank(); ++axis) strides[axis + lead] = operand[axis] == 1 ? 0 : own[axis];
  return strides;
}

// N operands over a common shape. Axes of extent 1 are dropped and neighbours merged where every operand allows it, so
// rank is as small as it can be, but at least 1. `numel` may be 0; then nothing else counts.
template <int N>
struct StridedWalk {
  int rank = 0;
  std::int64_t numel = 1;
  Strides extents{};
  std::array<Strides, N> strides{};

  StridedWalk(const Shape& shape, const std::array<Strides, N>& given) : numel(shape.numel()) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape[axis] == 1) continue;
      bool merge = rank > 0;
      for (int i = 0; merge && i < N; ++i) merge = strides[i][rank - 1] == given[i][axis] * shape[axis];
      if (!merge) extents[rank++] = 1;
      extents[rank - 1] *= shape[axis];
      for (int i = 0; i < N; ++i) strides[i][rank - 1] = given[i][axis];
    }
    if (rank == 0) extents[rank++] = 1;
  }

  std::int64_t inner() const { return extents[rank - 1]; }
  std::int64_t inner_stride(int operand) const { return strides[operand][rank - 1]; }
  std::int64_t rows() const { return numel == 0 ? 0 : numel / inner(); }
};

// Stands on one row after another (row-major over all but the last `inner_axes` axes) and knows where each operand's
// row begins.
template <int N>
class RowCursor {
 public:
  RowCursor(const StridedWalk<N>& walk, std::int64_t row, int inner_axes = 1)
      : walk_(walk), outer_(walk.rank - inner_axes) {
    for (int axis = outer_ - 1; axis >= 0; --axis) {
      index_[axis] = row % walk.extents[axis];
      row /= walk.extents[axis];
      for (int i = 0; i < N; ++i) offset_[i] += index_[axis] * walk.strides[i][axis];
    }
  }
  std::int64_t offset(int operand) const { return offset_[operand]; }

  void next() {
    for (int axis = outer_ - 1; axis >= 0; --axis) {
      for (int i = 0; i < N; ++i) offset_[i] += walk_.strides[i][axis];
      if (++index_[axis] < walk_.extents[axis]) return;
      for (int i = 0; i < N; ++i) offset_[i] -= walk_.strides[i][axis] * walk_.extents[axis];
      index_[axis] = 0;
    }
  }

 private:
  const StridedWalk<N>& walk_;
  int outer_;
  Strides index_{};
  std::array<std::int64_t, N> offset_{};
};

}  // namespace tapestry
