// Reductions over any set of axes. A reducer says how elements become partial results and how two of these join:
//   Stored, Lane                  what is read, and what is computed with
//   start()                       the result over nothing: an array of k vectors of Lane
//   take(partial, x, given, at)   an element joins; `given` is a number of its result that an earlier reduction found
//                                 out, `at` its position in the slice, in row-major order over the reduced axes
//   join(partial, other)          two partial results become one
// After neighbouring axes are merged, kept and reduced ones alternate. If the innermost is kept, an output is a tile of
// columns and each reduced index adds a row to it; if it is reduced, an output is one number, and the run along it is
// taken by the rows of the same tile, whose lanes are joined at the end. A piece is at most kPieceRows rows, in groups
// of kGroupRows; pieces are joined pairwise, so the error of an f32 sum grows with the logarithm of the length. Few
// outputs with many pieces are split into chunks of kChunkPieces for the threads. Groups, pieces and chunks depend on
// the shape only, and so do the bits.
#pragma once

#include "core/kernels/rows.h"
#include "core/kernels/strided_walk.h"

namespace tapestry::cpu {

// One of several reductions of the same elements, run in order; write(result, total) gets a std::array of k Lanes.
template <class R, class Write>
struct FoldStage {
  R reducer;
  const typename R::Stored* given;  // for each result, or null
  Write write;
};
template <class R, class Write>
FoldStage<R, Write> fold_stage(R reducer, const typename R::Stored* given, Write write) {
  return {reducer, given, write};
}

template <class T, class A>
class Fold {
 public:
  // `kept` is `shape` with every reduced axis set to 1, aligned with it at the last axis.
  Fold(const T* x, const Shape& shape, const Shape& kept)
      : x_(x), walk_(shape, {shape.strides(), broadcast_strides(kept, shape)}) {
    inner_kept_ = walk_.inner_stride(1) != 0;
    for (int axis = walk_.rank - 2; axis >= 0; --axis) {
      const bool reduced = walk_.strides[1][axis] == 0;
      // With the innermost axis kept, rows are stacked along the reduced axis next to it.
      if (reduced && inner_kept_ && stack_ < 0)
        stack_ = axis;
      else
        (reduced ? terms_ : results_).add(walk_, axis);
    }
    tiles_ = inner_kept_ ? (walk_.inner() + kWidth - 1) / kWidth : 1;
    length_ = !inner_kept_ ? walk_.inner() : stack_ >= 0 ? walk_.extents[stack_] : 1;
    piece_ = inner_kept_ ? kPieceRows : kPieceRows * kWidth;
    pieces_per_term_ = (length_ + piece_ - 1) / piece_;
  }

  template <class... Stage>
  void run(const Stage&... stages) const {
    const std::int64_t outputs = results_.count * tiles_, pieces = terms_.count * pieces_per_term_;
    const std::int64_t chunks = outputs < kFewOutputs ? (pieces + kChunkPieces - 1) / kChunkPieces : 1;
    if (chunks > 1) return (run_in_chunks(stages, outputs, pieces, chunks), ...);
    // One output after another: what a stage reads is still in the cache for the next.
    parallel_rows(outputs, std::max<std::int64_t>(1, walk_.numel / outputs), [&](std::int64_t i) {
      const Output output(*this, i);
      if (!inner_kept_ && pieces == 1 && length_ <= kWidth) return (run_short(stages, output), ...);
      (finish(stages, output, partial(stages, output, 0, pieces)), ...);
    });
  }

 private:
  using Vec = simd::Vec<A>;
  using Index = std::conditional_t<sizeof(A) == 4, std::int32_t, std::int64_t>;
  using At = simd::Vec<Index>;
  static constexpr int kTile = 4;  // vectors
  static constexpr std::int64_t kLanes = simd::kLanes<A>, kWidth = kTile * kLanes;
  static constexpr std::int64_t kGroupRows = 8, kPieceRows = 64, kChunkPieces = 16, kFewOutputs = 16;

  template <class R>
  using Partial = decltype(std::declval<const R&>().start());
  template <class R>
  using Tile = std::array<Partial<R>, kTile>;

  template <class R>
  static Tile<R> start(const R& reducer) {
    Tile<R> tile;
    tile.fill(reducer.start());
    return tile;
  }
  template <class R>
  static void join(const R& reducer, Tile<R>& tile, const Tile<R>& other) {
    for (int k = 0; k < kTile; ++k) reducer.join(tile[k], other[k]);
  }

  // Joins tiles in a balanced tree: after 2^k of them one of 2^k stands on level k, as in a binary counter.
  template <class R>
  class Pairwise {
   public:
    explicit Pairwise(const R& reducer) : reducer_(reducer) {}
    void push(Tile<R> tile) {
      int level = 0;
      for (; (count_ >> level) & 1; ++level) join(reducer_, tile, levels_[level]);
      levels_[level] = tile;
      ++count_;
    }
    Tile<R> total() const {
      Tile<R> all = start(reducer_);
      for (int level = 0; count_ >> level; ++level)
        if ((count_ >> level) & 1) join(reducer_, all, levels_[level]);
      return all;
    }

   private:
    const R& reducer_;
    std::int64_t count_ = 0;
    Tile<R> levels_[48];  // those without a bit in count_ hold nothing
  };

  // Outer axes, the innermost first, and where a row-major index over them lies in x and among the results.
  struct Axes {
    int rank = 0;
    std::int64_t count = 1;
    Strides extents{}, in_x{}, in_results{};

    void add(const StridedWalk<2>& walk, int axis) {
      extents[rank] = walk.extents[axis];
      in_x[rank] = walk.strides[0][axis];
      in_results[rank++] = walk.strides[1][axis];
      count *= walk.extents[axis];
    }
    std::array<std::int64_t, 2> locate(std::int64_t index) const {
      std::array<std::int64_t, 2> at{};
      for (int axis = 0; index > 0; ++axis) {
        const bool last = axis + 1 == rank;
        const std::int64_t rest = last ? 0 : index / extents[axis], here = index - rest * extents[axis];
        at[0] += here * in_x[axis];
        at[1] += here * in_results[axis];
        index = rest;
      }
      return at;
    }
  };

  // Neighbouring results, as many as a tile is wide, or a single one.
  struct Output {
    const T* x;
    std::int64_t result, width;
    Output(const Fold& f, std::int64_t index) {
      const std::int64_t outer = f.tiles_ == 1 ? index : index / f.tiles_;
      const std::int64_t column = (index - outer * f.tiles_) * kWidth;
      const auto [in_x, in_results] = f.results_.locate(outer);
      x = f.x_ + in_x + column;
      result = in_results + column;
      width = f.inner_kept_ ? std::min(kWidth, f.walk_.inner() - column) : 1;
    }
  };

  // The first `count` of a vector of elements.
  template <class Count>
  static Vec load(const T* p, Count count) {
    if constexpr (std::is_same_v<T, A>) {
      return simd::load_partial(p, count);
    } else {
      typedef T Stored __attribute__((vector_size(kLanes * sizeof(T))));
      Stored v{};
      std::memcpy(&v, p, static_cast<std::size_t>(count) * sizeof(T));
      return __builtin_convertvector(v, Vec);
    }
  }
  static std::int64_t lanes_of(std::int64_t width, int k) {
    return std::clamp<std::int64_t>(width - k * kLanes, 0, kLanes);
  }

  static At lane_numbers() {
    At lanes{};
    for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<Index>(i);
    return lanes;
  }

  // A vector of elements, or the first `count` of one.
  template <class R>
  void take_lanes(const R& reducer, Partial<R>& partial, const T* from, std::int64_t count, const Vec& given,
                  std::int64_t position) const {
    const At at = (inner_kept_ ? At{} : lane_numbers()) + static_cast<Index>(position);
    if (count == kLanes) {
      reducer.take(partial, load(from, std::integral_constant<std::int64_t, kLanes>{}), given, at);
    } else if (count > 0) {
      Partial<R> next = partial;
      reducer.take(next, load(from, count), given, at);
      const auto taken = lane_numbers() < static_cast<Index>(count);
      for (std::size_t j = 0; j < next.size(); ++j) partial[j] = taken ? next[j] : partial[j];
    }
  }

  // Rows of `width` elements. Short groups are taken on their own first: a long chain of additions would lose a bit
  // with each doubling.
  template <class R, class Width>
  Tile<R> take_rows(const R& reducer, const T* p, std::int64_t rows, std::int64_t stride, Width width, const Vec* given,
                    std::int64_t position) const {
    const auto take_group = [&](std::int64_t first, std::int64_t end) {
      Tile<R> group = start(reducer);
      for (std::int64_t r = first; r < end; ++r) {
        for (int k = 0; k < kTile; ++k) {
          const T* from = p + r * stride + k * kLanes;
          const std::int64_t at = position + (inner_kept_ ? r : r * kWidth + k * kLanes);
          take_lanes(reducer, group[k], from, lanes_of(width, k), given[k], at);
        }
      }
      return group;
    };
    if (rows <= kGroupRows) return take_group(0, rows);
    Tile<R> all = start(reducer);
    for (std::int64_t first = 0; first < rows; first += kGroupRows)
      join(reducer, all, take_group(first, std::min(first + kGroupRows, rows)));
    return all;
  }

  template <class R>
  Tile<R> piece(const R& reducer, const Output& output, std::int64_t index, const Vec* given) const {
    constexpr std::integral_constant<std::int64_t, kWidth> kFull;
    const std::int64_t term = index / pieces_per_term_, first = (index - term * pieces_per_term_) * piece_;
    const std::int64_t count = std::min(piece_, length_ - first), position = term * length_ + first;
    const T* p = output.x + terms_.locate(term)[0];
    if (inner_kept_) {
      const std::int64_t stride = stack_ >= 0 ? walk_.strides[0][stack_] : 0;
      p += first * stride;
      return output.width == kWidth ? take_rows(reducer, p, count, stride, kFull, given, position)
                                    : take_rows(reducer, p, count, stride, output.width, given, position);
    }
    const std::int64_t full = count / kWidth * kWidth;
    const auto rest = [&] { return take_rows(reducer, p + first + full, 1, 0, count - full, given, position + full); };
    if (full == 0) return rest();
    Tile<R> run = take_rows(reducer, p + first, count / kWidth, kWidth, kFull, given, position);
    if (full < count) join(reducer, run, rest());
    return run;
  }

  // Pieces [begin, end) of one output.
  template <class R, class Write>
  Tile<R> partial(const FoldStage<R, Write>& stage, const Output& output, std::int64_t begin, std::int64_t end) const {
    Vec given[kTile] = {};
    if (stage.given) {
      const T* from = stage.given + output.result;
      for (int k = 0; k < kTile; ++k)
        given[k] = inner_kept_ ? load(from + k * kLanes, lanes_of(output.width, k)) : simd::splat<A>(*from);
    }
    if (end - begin == 1) return piece(stage.reducer, output, begin, given);
    Pairwise<R> all(stage.reducer);
    for (std::int64_t i = begin; i < end; ++i) all.push(piece(stage.reducer, output, i, given));
    return all.total();
  }

  template <class R, class Write>
  void run_in_chunks(const FoldStage<R, Write>& stage, std::int64_t outputs, std::int64_t pieces,
                     std::int64_t chunks) const {
    Storage scratch(outputs * chunks * static_cast<std::int64_t>(sizeof(Tile<R>)));
    Tile<R>* partials = reinterpret_cast<Tile<R>*>(scratch.data());
    parallel_rows(outputs * chunks, kSerialElements, [&](std::int64_t i) {
      const std::int64_t first = i % chunks * kChunkPieces, end = std::min(first + kChunkPieces, pieces);
      new (partials + i) Tile<R>(partial(stage, Output(*this, i / chunks), first, end));
    });
    for (std::int64_t i = 0; i < outputs; ++i) {
      Pairwise<R> all(stage.reducer);
      for (std::int64_t c = 0; c < chunks; ++c) all.push(partials[i * chunks + c]);
      finish(stage, Output(*this, i), all.total());
    }
  }

  template <int half, class R>
  static void join_lanes(const R& reducer, Partial<R>& partial) {
    Partial<R> other;
    [&]<int... lane>(std::integer_sequence<int, lane...>) {
      for (std::size_t j = 0; j < other.size(); ++j)
        other[j] = __builtin_shufflevector(partial[j], partial[j], ((lane + half) % kLanes)...);
    }
    (std::make_integer_sequence<int, kLanes>{});
    reducer.join(partial, other);
    if constexpr (half > 1) join_lanes<half / 2>(reducer, partial);
  }

  template <class R, class Write>
  static void write_lane(const FoldStage<R, Write>& stage, std::int64_t result, const Partial<R>& partial, int lane) {
    std::array<A, std::tuple_size_v<Partial<R>>> total;
    for (std::size_t j = 0; j < total.size(); ++j) total[j] = partial[j][lane];
    stage.write(result, total);
  }

  template <class R, class Write>
  void finish(const FoldStage<R, Write>& stage, const Output& output, Tile<R> tile) const {
    if (!inner_kept_) {
      stage.reducer.join(tile[0], tile[1]);
      stage.reducer.join(tile[2], tile[3]);
      stage.reducer.join(tile[0], tile[2]);
      join_lanes<kLanes / 2>(stage.reducer, tile[0]);
    }
    for (int i = 0; i < output.width; ++i) write_lane(stage, output.result + i, tile[i / kLanes], i % kLanes);
  }

  // A run that fits into a tile, without the cost of one.
  template <class R, class Write>
  void run_short(const FoldStage<R, Write>& stage, const Output& output) const {
    const Vec given = stage.given ? simd::splat<A>(stage.given[output.result]) : Vec{};
    Partial<R> all = stage.reducer.start();
    for (std::int64_t i = 0; i < length_; i += kLanes)
      take_lanes(stage.reducer, all, output.x + i, std::min(kLanes, length_ - i), given, i);
    join_lanes<kLanes / 2>(stage.reducer, all);
    write_lane(stage, output.result, all, 0);
  }

  const T* x_;
  StridedWalk<2> walk_;  // x and the results
  bool inner_kept_ = false;
  int stack_ = -1;
  Axes results_, terms_;
  std::int64_t tiles_ = 1, length_ = 1, piece_ = 1, pieces_per_term_ = 1;
};

// Runs the stages over x. Results are numbered in row-major order of `kept`, which is `shape` with every reduced axis
// set to 1.
template <class R, class... Rs, class Write, class... Writes>
void fold(const typename R::Stored* x, const Shape& shape, const Shape& kept, const FoldStage<R, Write>& first,
          const FoldStage<Rs, Writes>&... more) {
  if (shape.numel() > 0) return Fold<typename R::Stored, typename R::Lane>(x, shape, kept).run(first, more...);
  const auto write_nothing = [&](const auto& stage) {
    const auto lanes = stage.reducer.start();
    std::array<typename R::Lane, std::tuple_size_v<std::remove_cvref_t<decltype(lanes)>>> total;
    for (std::size_t j = 0; j < total.size(); ++j) total[j] = lanes[j][0];
    for (std::int64_t i = 0; i < kept.numel(); ++i) stage.write(i, total);
  };
  write_nothing(first);
  (write_nothing(more), ...);
}

// Sums of f(x, given), k of them at once: f returns Vectors<T, k>.
template <class T, class F>
struct Sums {
  using Stored = T;
  using Lane = T;
  using Partial = std::invoke_result_t<F, simd::Vec<T>, simd::Vec<T>>;
  F f;

  Partial start() const { return {}; }
  template <class At>
  void take(Partial& sum, simd::Vec<T> x, simd::Vec<T> given, At) const {
    join(sum, f(x, given));
  }
  void join(Partial& sum, const Partial& other) const {
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += other[j];
  }
};
template <class T, class F>
Sums<T, F> sums(F f) {
  return {f};
}

// The largest f(x), NaN if there is one; -inf over nothing.
template <class T, class F>
struct Largest {
  using Stored = T;
  using Lane = T;
  using Partial = Vectors<T, 1>;
  F f;

  Partial start() const { return {simd::splat(kMinusInfinity<T>)}; }
  template <class At>
  void take(Partial& max, simd::Vec<T> x, simd::Vec<T>, At) const {
    max[0] = simd::max(max[0], f(x));
  }
  void join(Partial& max, const Partial& other) const { max[0] = simd::max(max[0], other[0]); }
};
template <class T, class F>
Largest<T, F> largest(F f) {
  return {f};
}

}  // namespace tapestry::cpu
