// The slices of a reduction over any set of axes: the elements behind one result, handed to a kernel as a contiguous
// row in row-major order. Where they lie apart, neighbouring slices are gathered together, so that every cache line is
// read once. One slice belongs to one thread. Also: the sums and maxima over a row that such kernels share.
#pragma once

#include "core/kernels/rows.h"
#include "core/kernels/strided_walk.h"

namespace tapestry::cpu {

class Slices {
 public:
  // `kept` is `shape` with every reduced axis set to 1. Results are numbered in row-major order of `kept`.
  Slices(const Shape& shape, const Shape& kept)
      : results_(part(shape, kept, false)), terms_(part(shape, kept, true)), count_(kept.numel()) {
    contiguous_ = terms_.rank == 1 && (terms_.inner_stride(0) == 1 || length() == 1);
    if (!contiguous_ && results_.inner_stride(0) == 1)
      width_ = std::clamp<std::int64_t>(kGathered / std::max<std::int64_t>(length(), 1), 1, kNeighbours);
    blocks_per_row_ = (results_.inner() + width_ - 1) / width_;
  }

  std::int64_t count() const { return count_; }
  std::int64_t length() const { return terms_.numel; }
  bool contiguous() const { return contiguous_; }
  // Where the element at `position` of the slice of `result` lies in x.
  std::int64_t offset(std::int64_t result, std::int64_t position) const {
    return offset(results_, result) + offset(terms_, position);
  }

  // Neighbouring results whose slices are gathered together, and the most there can be of them.
  struct Block {
    std::int64_t first, count, offset;
  };
  std::int64_t width() const { return width_; }
  // From one gathered row to the next. Rows a multiple of 4 KiB apart would compete for the same cache lines.
  std::int64_t pitch() const { return length() + kNeighbours; }
  std::int64_t blocks() const { return results_.rows() * blocks_per_row_; }
  Block block(std::int64_t i) const {
    const std::int64_t column = i % blocks_per_row_ * width_;
    const std::int64_t first = i / blocks_per_row_ * results_.inner() + column;
    return {first, std::min(width_, results_.inner() - column), offset(results_, first)};
  }

  // Calls f(position, offset) for every element of a slice.
  template <class F>
  void for_each_term(F f) const {
    std::int64_t position = 0;
    RowCursor<1> run(terms_, 0);
    for (std::int64_t r = 0; r < terms_.rows(); ++r, run.next())
      for (std::int64_t i = 0; i < terms_.inner(); ++i) f(position++, run.offset(0) + i * terms_.inner_stride(0));
  }
  template <class T>
  void gather(const T* from, std::int64_t count, T* rows) const {
    for_each_term([=, step = pitch()](std::int64_t position, std::int64_t offset) {
      for (std::int64_t c = 0; c < count; ++c) rows[c * step + position] = from[offset + c];
    });
  }
  template <class T>
  void scatter(const T* rows, std::int64_t count, T* to, bool add) const {
    for_each_term([=, step = pitch()](std::int64_t position, std::int64_t offset) {
      for (std::int64_t c = 0; c < count; ++c) {
        const T value = rows[c * step + position];
        to[offset + c] = add ? to[offset + c] + value : value;
      }
    });
  }

 private:
  static constexpr std::int64_t kNeighbours = 16, kGathered = 1 << 16;  // slices, elements

  static StridedWalk<1> part(const Shape& shape, const Shape& kept, bool reduced) {
    Shape extents = shape;
    for (int axis = 0; axis < shape.rank(); ++axis)
      if ((kept[axis] != shape[axis]) != reduced) extents = extents.with(axis, 1);
    return StridedWalk<1>(extents, {shape.strides()});
  }
  static std::int64_t offset(const StridedWalk<1>& walk, std::int64_t index) {
    std::int64_t offset = 0;
    for (int axis = walk.rank - 1; axis >= 0; --axis) {
      offset += index % walk.extents[axis] * walk.strides[0][axis];
      index /= walk.extents[axis];
    }
    return offset;
  }

  StridedWalk<1> results_, terms_;
  std::int64_t count_, width_ = 1, blocks_per_row_ = 1;
  bool contiguous_ = false;
};

// f(result, row) for every slice of x.
template <class T, class F>
void for_each_slice(const Slices& s, const T* x, F f) {
  parallel_for(s.blocks(), grain_for(s.length() * s.width()), [&](std::int64_t begin, std::int64_t end) {
    Tensor gathered = s.contiguous() ? Tensor() : workspace({s.width(), s.pitch()}, dtype_of<T>);
    T* buffer = gathered ? gathered.mutable_data<T>() : nullptr;
    for (std::int64_t i = begin; i < end; ++i) {
      const Slices::Block block = s.block(i);
      const T* rows = x + block.offset;
      if (buffer) {
        s.gather(rows, block.count, buffer);
        rows = buffer;
      }
      for (std::int64_t c = 0; c < block.count; ++c) f(block.first + c, rows + c * s.pitch());
    }
  });
}

// f(result, row) turns a copy of each slice of x into what is written or added to the same slice of y.
template <class T, class F>
void map_slices(const Slices& s, const T* x, T* y, bool add, F f) {
  parallel_for(s.blocks(), grain_for(s.length() * s.width()), [&](std::int64_t begin, std::int64_t end) {
    Tensor gathered = workspace({s.width(), s.pitch()}, dtype_of<T>);
    T* rows = gathered.mutable_data<T>();
    for (std::int64_t i = begin; i < end; ++i) {
      const Slices::Block block = s.block(i);
      s.gather(x + block.offset, block.count, rows);
      for (std::int64_t c = 0; c < block.count; ++c) f(block.first + c, rows + c * s.pitch());
      s.scatter(rows, block.count, y + block.offset, add);
    }
  });
}

// Sum of f(i, count) over [begin, end), whose lanes past the end must hold 0. Runs are combined pairwise, so the error
// of an f32 sum grows with the logarithm of the length.
template <class T, class F>
T pairwise_sum(std::int64_t begin, std::int64_t end, const F& f) {
  constexpr std::int64_t kRun = 1024;
  if (end - begin <= kRun)
    return row_sum<T>(end - begin, [&](std::int64_t i, auto count) { return f(begin + i, count); });
  const std::int64_t middle = begin + (end - begin + kRun - 1) / kRun / 2 * kRun;
  return pairwise_sum<T>(begin, middle, f) + pairwise_sum<T>(middle, end, f);
}

// The largest of f(i, count) over a row, NaN if there is one. Lanes past the end must hold -inf or repeat an element.
template <class T, class F>
T row_max(std::int64_t n, F&& f) {
  const auto larger = [](simd::Vec<T> a, simd::Vec<T> b) { return simd::max(a, b); };
  return simd::max(reduce_vectors<T>(n, simd::splat(kMinusInfinity<T>), larger, f));
}

}  // namespace tapestry::cpu
