// Sums over any set of axes, and their reverse; nothing is saved. After neighbouring axes are merged, kept and reduced
// ones alternate. If the innermost is kept, an output is a tile of columns and each reduced index adds a row to it; if
// it is reduced, an output is one number and the run along it is folded into the same tile of vector lanes first.
// A piece is at most kPieceRows rows, summed in groups of kGroupRows; pieces are combined pairwise, so the error of an
// f32 sum grows with the logarithm of the length. Few outputs with many pieces are split into chunks of kChunkPieces
// for the threads. Groups, pieces and chunks depend on the shape only, and so do the bits.
#include "core/kernels/reduce.h"

#include "core/kernels/pointwise_map.h"

namespace tapestry::cpu {
namespace {

constexpr int kTile = 4;  // vectors
constexpr std::int64_t kGroupRows = 8, kPieceRows = 64, kChunkPieces = 16, kFewOutputs = 16, kSerial = 32768;

template <class T>
struct Tile {
  simd::Vec<T> v[kTile];
  void operator+=(const Tile& other) {
    for (int k = 0; k < kTile; ++k) v[k] += other.v[k];
  }
};
template <class T>
constexpr std::int64_t kTileWidth = kTile* simd::kLanes<T>;

// Adds one row of `width` elements to the tile; those beyond it stay as they are.
template <class T>
void add_part_row(Tile<T>& sum, const T* p, std::int64_t width) {
  constexpr std::int64_t kW = simd::kLanes<T>;
  for (int k = 0; k * kW < width; ++k)
    sum.v[k] += width >= (k + 1) * kW ? simd::load(p + k * kW) : simd::load_partial(p + k * kW, width - k * kW);
}

// Short groups of rows are summed on their own first: a long chain of additions would lose a bit with each doubling.
template <class T>
Tile<T> sum_rows(const T* p, std::int64_t rows, std::int64_t stride, std::int64_t width) {
  Tile<T> sum{};
  for (std::int64_t first = 0; first < rows; first += kGroupRows) {
    const std::int64_t end = std::min(first + kGroupRows, rows);
    Tile<T> group{};
    if (width == kTileWidth<T>) {
      for (std::int64_t r = first; r < end; ++r, p += stride)
        for (int k = 0; k < kTile; ++k) group.v[k] += simd::load(p + k * simd::kLanes<T>);
    } else {
      for (std::int64_t r = first; r < end; ++r, p += stride) add_part_row(group, p, width);
    }
    sum += group;
  }
  return sum;
}

// Adds tiles in a balanced tree: after 2^k of them one sum of 2^k stands on level k, as in a binary counter.
template <class T>
class PairwiseSum {
 public:
  void push(Tile<T> tile) {
    int level = 0;
    for (; (count_ >> level) & 1; ++level) tile += levels_[level];
    levels_[level] = tile;
    ++count_;
  }
  Tile<T> total() const {
    Tile<T> sum{};
    for (int level = 0; count_ >> level; ++level)
      if ((count_ >> level) & 1) sum += levels_[level];
    return sum;
  }

 private:
  std::int64_t count_ = 0;
  Tile<T> levels_[48];  // those without a bit in count_ hold nothing
};

template <class T>
class Reduction {
 public:
  Reduction(const T* x, const Shape& shape, const Shape& kept)
      : x_(x), walk_(shape, {shape.strides(), broadcast_strides(kept, shape)}) {
    inner_kept_ = walk_.inner_stride(1) != 0;
    for (int axis = walk_.rank - 2; axis >= 0; --axis) {
      const bool reduced = walk_.strides[1][axis] == 0;
      // With the innermost axis kept, rows are stacked along the reduced axis next to it.
      if (reduced && inner_kept_ && stack_ < 0)
        stack_ = axis;
      else
        (reduced ? terms_ : outer_outputs_) *= walk_.extents[axis];
    }
    tiles_ = inner_kept_ ? (walk_.inner() + kTileWidth<T> - 1) / kTileWidth<T> : 1;
    length_ = !inner_kept_ ? walk_.inner() : stack_ >= 0 ? walk_.extents[stack_] : 1;
    piece_ = inner_kept_ ? kPieceRows : kPieceRows * kTileWidth<T>;
    pieces_per_term_ = (length_ + piece_ - 1) / piece_;
  }

  std::int64_t outputs() const { return outer_outputs_ * tiles_; }
  std::int64_t pieces() const { return terms_ * pieces_per_term_; }

  // Pieces [begin, end) of one output.
  Tile<T> partial(std::int64_t output, std::int64_t begin, std::int64_t end) const {
    const std::int64_t column = output % tiles_ * kTileWidth<T>;
    const T* base = x_ + offset(0, output / tiles_, false) + column;
    const std::int64_t width = std::min(kTileWidth<T>, walk_.inner() - column);
    PairwiseSum<T> sum;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % pieces_per_term_ * piece_, count = std::min(piece_, length_ - first);
      const T* p = base + offset(0, i / pieces_per_term_, true);
      if (inner_kept_) {
        const std::int64_t stride = stack_ >= 0 ? walk_.strides[0][stack_] : 0;
        sum.push(sum_rows(p + first * stride, count, stride, width));
      } else {
        const std::int64_t rows = count / kTileWidth<T>, rest = count % kTileWidth<T>;
        Tile<T> run = sum_rows(p + first, rows, kTileWidth<T>, kTileWidth<T>);
        add_part_row(run, p + first + rows * kTileWidth<T>, rest);
        sum.push(run);
      }
    }
    return sum.total();
  }

  void write(std::int64_t output, Tile<T> sum, T scale, T* target, bool add) const {
    const std::int64_t column = output % tiles_ * kTileWidth<T>;
    T* to = target + offset(1, output / tiles_, false) + column;
    T total[kTileWidth<T>];
    std::int64_t width = 1;
    if (inner_kept_) {
      width = std::min(kTileWidth<T>, walk_.inner() - column);
      for (int k = 0; k < kTile; ++k) simd::store(total + k * simd::kLanes<T>, sum.v[k]);
    } else {
      total[0] = simd::sum((sum.v[0] + sum.v[1]) + (sum.v[2] + sum.v[3]));
    }
    for (std::int64_t i = 0; i < width; ++i) to[i] = add ? to[i] + scale * total[i] : scale * total[i];
  }

 private:
  // Where `index`, row-major over the outer kept or reduced axes (less the stacked one), lies in an operand.
  std::int64_t offset(int operand, std::int64_t index, bool reduced) const {
    std::int64_t offset = 0;
    for (int axis = walk_.rank - 2; axis >= 0; --axis) {
      if (axis == stack_ || (walk_.strides[1][axis] == 0) != reduced) continue;
      offset += index % walk_.extents[axis] * walk_.strides[operand][axis];
      index /= walk_.extents[axis];
    }
    return offset;
  }

  const T* x_;
  StridedWalk<2> walk_;  // x and the target
  bool inner_kept_ = false;
  int stack_ = -1;
  std::int64_t outer_outputs_ = 1, tiles_ = 1, terms_ = 1, length_ = 1, piece_ = 1, pieces_per_term_ = 1;
};

}  // namespace

template <class T>
void sum_into(const T* x, const Shape& shape, const Shape& kept, double scale, T* target, bool add) {
  if (shape.numel() == 0) {
    if (!add) std::fill_n(target, kept.numel(), T(0));
    return;
  }
  const Reduction<T> reduction(x, shape, kept);
  const std::int64_t outputs = reduction.outputs(), pieces = reduction.pieces();
  const T factor = static_cast<T>(scale);
  const std::int64_t chunks = outputs < kFewOutputs ? (pieces + kChunkPieces - 1) / kChunkPieces : 1;
  if (chunks == 1) {
    const std::int64_t each = std::max<std::int64_t>(1, shape.numel() / outputs);
    parallel_for(outputs, std::max<std::int64_t>(1, kSerial / each), [&](auto begin, auto end) {
      for (std::int64_t i = begin; i < end; ++i)
        reduction.write(i, reduction.partial(i, 0, pieces), factor, target, add);
    });
    return;
  }
  Storage scratch(outputs * chunks * static_cast<std::int64_t>(sizeof(Tile<T>)));
  Tile<T>* partials = reinterpret_cast<Tile<T>*>(scratch.data());
  parallel_for(outputs * chunks, 1, [&](auto begin, auto end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % chunks * kChunkPieces;
      new (partials + i) Tile<T>(reduction.partial(i / chunks, first, std::min(first + kChunkPieces, pieces)));
    }
  });
  for (std::int64_t i = 0; i < outputs; ++i) {
    PairwiseSum<T> sum;
    for (std::int64_t c = 0; c < chunks; ++c) sum.push(partials[i * chunks + c]);
    reduction.write(i, sum.total(), factor, target, add);
  }
}
template void sum_into(const float*, const Shape&, const Shape&, double, float*, bool);
template void sum_into(const double*, const Shape&, const Shape&, double, double*, bool);

void sum_forward(const Tensor& x, const Shape& kept, double scale, Tensor& y) {
  TAP_CHECK(y.numel() == kept.numel(), "sum: y ", y.shape(), " must have as many elements as ", kept);
  visit_float("sum", x.dtype(),
              [&]<class T>(TypeTag<T>) { sum_into(x.data<T>(), x.shape(), kept, scale, y.mutable_data<T>(), false); });
}

void sum_backward(const Tensor& dy, const Shape& kept, double scale, Grad dx) {
  if (!dx) return;
  visit_float("sum", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim();
    map<T>(dx.shape(), dx.data<T>(), add, {MapInput<T>{dy.data<T>(), broadcast_strides(kept, dx.shape())}},
           [factor = T(scale)](simd::Vec<T> g) { return g * factor; });
  });
}

}  // namespace tapestry::cpu
