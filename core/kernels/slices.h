// The slices of a reduction over any set of axes: the elements behind one result, handed to a kernel as a contiguous
// row in row-major order. Where they lie apart, neighbouring slices are gathered together, so that every cache line is
// read once. One slice belongs to one thread.
#pragma once

#include "core/kernels/rows.h"
#include "core/kernels/strided_walk.h"

namespace tapestry::cpu {

class Slices {
 public:
  static constexpr std::int64_t kNeighbours = 16;  // slices at most that are gathered together

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
  // Elements that follow one another in memory at any position that is a multiple of it.
  std::int64_t run() const { return terms_.inner_stride(0) == 1 ? terms_.inner() : 1; }
  // Where the slice of `result` begins in x, and where its element at `position` lies from there.
  std::int64_t start(std::int64_t result) const { return offset(results_, result); }
  std::int64_t term(std::int64_t position) const { return offset(terms_, position); }

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

 private:
  static constexpr std::int64_t kGathered = 1 << 16;  // elements

  static StridedWalk<1> part(const Shape& shape, const Shape& kept, bool reduced) {
    Shape extents = shape;
    for (int axis = 0; axis < shape.rank(); ++axis)
      if ((kept[axis] != shape[axis]) != reduced) extents = extents.with(axis, 1);
    return StridedWalk<1>(extents, {shape.strides()});
  }
  static std::int64_t offset(const StridedWalk<1>& walk, std::int64_t index) {
    std::int64_t offset = 0;
    for (int axis = walk.rank - 1; axis > 0; --axis) {
      offset += index % walk.extents[axis] * walk.strides[0][axis];
      index /= walk.extents[axis];
    }
    return offset + index * walk.strides[0][0];
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

}  // namespace tapestry::cpu
