// c = op(a) op(b) + bias + addend, blocked: panels of b that fit the level 2 cache are packed in strips of one tile's
// width; a is read in place where its rows are contiguous and packed where it is transposed. k is cut into blocks by
// its size alone and c takes the blocks in ascending order, so neither the split over threads nor the panels change a
// bit. A product of one row reads b once, without packing.
#include "core/kernels/gemm.h"

#include "core/kernels/gemm_kernel.h"
#include "core/kernels/pointwise_formulas.h"
#include "core/kernels/rows.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

using detail::divide_up, detail::round_up, detail::kTileColumns, detail::kTileRows;
using simd::kLanes, simd::Vec;

// A panel of b is kBlockK rows of kPanelColumns: 768 KiB of float, 384 KiB of double.
template <class T>
constexpr std::int64_t kBlockK = 2048 / sizeof(T);
template <class T>
constexpr std::int64_t kPanelColumns = 1536 / sizeof(T);
template <class T>
constexpr std::int64_t kStrips = kPanelColumns<T> / kTileColumns<T>;
constexpr std::int64_t kBlockRows = 128;  // of a, which pass over a panel together
// Below so many rows a strip of b is not read often enough to be worth packing.
constexpr std::int64_t kRowsWithoutPacking = 64;
// What one thread should at least have to do: multiply-adds, or elements of b to read for a single row.
constexpr std::int64_t kWorkPerThread = 1 << 17, kReadsPerThread = 1 << 15;

template <class T>
struct Scratches {
  detail::Scratch<T> a, b;
};
template <class T>
Scratches<T>& scratch() {
  static thread_local Scratches<T> instance;
  return instance;
}

// The part of g that computes `rows` rows of c from i0 and `columns` columns from j0.
template <class T>
Gemm<T> part(Gemm<T> g, std::int64_t i0, std::int64_t rows, std::int64_t j0, std::int64_t columns) {
  g.a += g.transpose_a ? i0 : i0 * g.lda;
  g.b += g.transpose_b ? j0 * g.ldb : j0;
  g.c += i0 * g.ldc + j0;
  if (g.bias) g.bias += j0;
  if (g.residual) g.residual += i0 * g.ldc + j0;
  if (g.gelu) g.gelu += i0 * g.ldc + j0;
  g.m = rows;
  g.n = columns;
  return g;
}

// The terms p0..p0+k of the sum.
template <class T>
Gemm<T> terms(Gemm<T> g, std::int64_t p0, std::int64_t k) {
  g.a += g.transpose_a ? p0 * g.lda : p0;
  g.b += g.transpose_b ? p0 : p0 * g.ldb;
  g.add = g.add || p0 > 0;
  if (p0 + k < g.k) g.bias = g.gelu = nullptr;
  g.k = k;
  return g;
}

// gelu of some rows and columns of c, both `row_stride` apart.
template <class T>
void write_gelu(GeluForm form, const T* c, T* to, std::int64_t row_stride, std::int64_t rows, std::int64_t columns) {
  const auto each = [&](auto formula) {
    for (std::int64_t i = 0; i < rows; ++i, c += row_stride, to += row_stride)
      for_each_vector<T>(columns, [=](std::int64_t j, auto count) {
        simd::store_partial(to + j, formula.f(simd::load_partial(c + j, count)), count);
      });
  };
  form == GeluForm::erf ? each(formula::Gelu{}) : each(formula::GeluTanh{});
}

// A strip of op(b), at most kTileColumns wide, as the tiles read it: row p starts at data + p * step.
template <class T>
struct Strip {
  const T* data;
  std::int64_t step;
};

template <class T>
Strip<T> prepare_strip(const Gemm<T>& g, std::int64_t j, std::int64_t columns, T* packed) {
  const std::int64_t step = round_up(columns, kLanes<T>);
  if (g.transpose_b) {
    detail::pack_transposed(g.b + j * g.ldb, g.ldb, g.k, columns, step, packed);
  } else if (g.m <= kRowsWithoutPacking && columns == step) {
    return {g.b + j, g.ldb};
  } else {
    detail::pack_rows(g.b + j, g.ldb, g.k, columns, step, packed);
  }
  return {packed, step};
}

// One panel, one block of k: n is at most kPanelColumns.
template <class T>
void multiply_panel(const Gemm<T>& g, Scratches<T>& memory) {
  T* packed_b = memory.b.get(round_up(g.n, kLanes<T>) * g.k);
  std::array<Strip<T>, kStrips<T>> strips;
  for (std::int64_t s = 0, j = 0; j < g.n; ++s, j += kTileColumns<T>)
    strips[s] = prepare_strip(g, j, std::min(kTileColumns<T>, g.n - j), packed_b + j * g.k);

  for (std::int64_t i0 = 0; i0 < g.m; i0 += kBlockRows) {
    const std::int64_t rows = std::min(kBlockRows, g.m - i0);
    detail::Tile<T> tile{.k = g.k, .a_row = g.lda, .a_step = 1, .ldc = g.ldc};
    const T* a = g.a + (g.transpose_a ? i0 : i0 * g.lda);
    std::int64_t a_tile = kTileRows * g.lda;  // from tile to tile
    if (g.transpose_a) {
      T* packed_a = memory.a.get(kBlockRows / kTileRows * detail::tile_stride<T>(g.k));
      detail::pack_tiles(a, g.lda, rows, g.k, packed_a);
      a = packed_a;
      a_tile = detail::tile_stride<T>(g.k);
      tile.a_row = 1;
      tile.a_step = kTileRows;
    }
    for (std::int64_t s = 0, j = 0; j < g.n; ++s, j += kTileColumns<T>) {
      const std::int64_t columns = std::min(kTileColumns<T>, g.n - j);
      tile.b = strips[s].data;
      tile.b_step = strips[s].step;
      tile.bias = g.bias ? g.bias + j : nullptr;
      for (std::int64_t i = 0; i < rows; i += kTileRows) {
        tile.a = a + i / kTileRows * a_tile;
        const std::int64_t at = (i0 + i) * g.ldc + j, height = std::min(kTileRows, rows - i);
        tile.c = g.c + at;
        tile.addend = g.add ? tile.c : g.residual ? g.residual + at : nullptr;
        if (columns % kLanes<T> == 0)
          detail::multiply_tile(tile, height, columns / kLanes<T>);
        else
          detail::multiply_edge_tile(tile, height, columns);
        if (g.gelu) write_gelu(g.form, tile.c, g.gelu + at, g.ldc, height, columns);
      }
    }
  }
}

template <class T>
void multiply(const Gemm<T>& g) {
  Scratches<T>& memory = scratch<T>();
  const std::int64_t panels = divide_up(g.n, kPanelColumns<T>);
  const std::int64_t width = round_up(divide_up(g.n, panels), kTileColumns<T>);
  const std::int64_t depth = round_up(divide_up(g.k, divide_up(g.k, kBlockK<T>)), 8);
  for (std::int64_t j = 0; j < g.n; j += width) {
    const Gemm<T> panel = part(g, 0, g.m, j, std::min(width, g.n - j));
    for (std::int64_t p = 0; p < g.k; p += depth) multiply_panel(terms(panel, p, std::min(depth, g.k - p)), memory);
  }
}

// ---- one row: c is a row vector times op(b), and every element of b is read once: what counts is the memory's speed.
// The rows of b that come next are fetched ahead, since each is too short for the processor to notice by itself.

// Sums rows of b scaled by the elements of a into c, kRows at a time so that c is loaded and stored less often.
template <class T, int kRows>
void add_rows(const T* a, const T* b, std::int64_t ldb, T* c, std::int64_t n) {
  Vec<T> x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) x[r] = simd::splat(a[r]);
  auto step = [&](Vec<T> sum, auto&& load_row) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum += x[r] * load_row(r);
    return sum;
  };
  const auto row = [=](int r, std::int64_t j) {
    __builtin_prefetch(b + (kRows + r) * ldb + j, 0, 2);
    return simd::load(b + r * ldb + j);
  };
  std::int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>)
    simd::store(c + j, step(simd::load(c + j), [&](int r) { return row(r, j); }));
  if (j < n)
    simd::store_partial(
        c + j,
        step(simd::load_partial(c + j, n - j), [&](int r) { return simd::load_partial(b + r * ldb + j, n - j); }),
        n - j);
}

template <class T, int kRows>
void dot_rows(const T* a, const T* b, std::int64_t ldb, std::int64_t k, T* dots) {
  Vec<T> sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = Vec<T>{};
  std::int64_t p = 0;
  for (; p + kLanes<T> <= k; p += kLanes<T>) {
    const Vec<T> x = simd::load(a + p);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      __builtin_prefetch(b + (kRows + r) * ldb + p, 0, 2);
      sum[r] += x * simd::load(b + r * ldb + p);
    }
  }
  if (p < k) {
    const Vec<T> x = simd::load_partial(a + p, k - p);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] += x * simd::load_partial(b + r * ldb + p, k - p);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    T total = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) total += sum[r][lane];
    dots[r] = total;
  }
}

template <class T>
void multiply_row(const Gemm<T>& g) {
  const T* a = g.a;
  if (g.transpose_a) {
    T* gathered = scratch<T>().a.get(g.k);
    for (std::int64_t p = 0; p < g.k; ++p) gathered[p] = g.a[p * g.lda];
    a = gathered;
  }
  if (g.transpose_b) {
    constexpr int kRows = 8;
    for (std::int64_t j = 0; j < g.n; j += kRows) {
      const std::int64_t rows = std::min<std::int64_t>(kRows, g.n - j);
      T dots[kRows];
      if (rows == kRows)
        dot_rows<T, kRows>(a, g.b + j * g.ldb, g.ldb, g.k, dots);
      else
        for (std::int64_t r = 0; r < rows; ++r) dot_rows<T, 1>(a, g.b + (j + r) * g.ldb, g.ldb, g.k, dots + r);
      for (std::int64_t r = 0; r < rows; ++r) {
        T value = dots[r];
        if (g.bias) value += g.bias[j + r];
        if (g.add) value += g.c[j + r];
        g.c[j + r] = value;
      }
    }
    return;
  }
  constexpr std::int64_t kRows = 8, kColumns = 8192 / sizeof(T);  // of c, to stay in the level 1 cache
  for (std::int64_t j = 0; j < g.n; j += kColumns) {
    const std::int64_t columns = std::min(kColumns, g.n - j);
    T* c = g.c + j;
    if (!g.add) std::fill_n(c, columns, T(0));
    if (g.bias)
      for (std::int64_t i = 0; i < columns; ++i) c[i] += g.bias[j + i];
    std::int64_t p = 0;
    for (; p + kRows <= g.k; p += kRows) add_rows<T, kRows>(a + p, g.b + p * g.ldb + j, g.ldb, c, columns);
    for (; p < g.k; ++p) add_rows<T, 1>(a + p, g.b + p * g.ldb + j, g.ldb, c, columns);
  }
}

// What a product without tiles does at the end.
template <class T>
void finish(const Gemm<T>& g) {
  if (g.residual)
    for (std::int64_t i = 0; i < g.m; ++i)
      for (std::int64_t j = 0; j < g.n; ++j) g.c[i * g.ldc + j] += g.residual[i * g.ldc + j];
  if (g.gelu) write_gelu(g.form, g.c, g.gelu, g.ldc, g.m, g.n);
}

// k = 0: an empty sum.
template <class T>
void write_empty_sum(const Gemm<T>& g) {
  for (std::int64_t i = 0; i < g.m; ++i)
    for (std::int64_t j = 0; j < g.n; ++j)
      g.c[i * g.ldc + j] = (g.add ? g.c[i * g.ldc + j] : T(0)) + (g.bias ? g.bias[j] : T(0));
}

template <class T>
void multiply_serial(const Gemm<T>& g, bool one_row) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k > 0 && !one_row) return multiply(g);
  g.k == 0 ? write_empty_sum(g) : multiply_row(g);
  finish(g);
}

// How c is cut into a grid of parts, one for each thread.
struct Grid {
  std::int64_t rows, columns;  // of one part
};

// The cheapest grid of at most `threads` parts, counting that every part packs its columns of b, and reads (or packs)
// its rows of a once for each panel.
template <class T>
Grid choose_grid(const Gemm<T>& g, std::int64_t threads) {
  constexpr std::int64_t kPacking = 8, kReading = 4;  // an element costs about as much as so many multiply-adds
  Grid best{g.m, g.n};
  std::int64_t best_cost = INT64_MAX;
  for (std::int64_t down = 1; down <= threads; ++down) {
    const Grid grid{round_up(divide_up(g.m, down), kTileRows),
                    round_up(divide_up(g.n, threads / down), kTileColumns<T>)};
    const std::int64_t from_a = grid.rows * divide_up(grid.columns, kPanelColumns<T>);
    const std::int64_t cost =
        grid.rows * grid.columns + kPacking * grid.columns + (g.transpose_a ? kPacking : kReading) * from_a;
    if (cost < best_cost) {
      best = grid;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace

template <class T>
void gemm_serial(const Gemm<T>& g) {
  multiply_serial(g, g.m == 1);
}

template <class T>
void gemm(const Gemm<T>& g) {
  const bool one_row = g.m == 1;
  const std::int64_t work = one_row ? g.n * g.k / kReadsPerThread : g.m * g.n * g.k / kWorkPerThread;
  const std::int64_t threads = std::clamp<std::int64_t>(work, 1, num_threads());
  if (threads == 1) return multiply_serial(g, one_row);
  const Grid grid = one_row ? Grid{1, round_up(divide_up(g.n, threads), kLanes<T>)} : choose_grid(g, threads);
  const std::int64_t down = divide_up(g.m, grid.rows), across = divide_up(g.n, grid.columns);
  parallel_for(down * across, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      const std::int64_t i = index / across * grid.rows, j = index % across * grid.columns;
      multiply_serial(part(g, i, std::min(grid.rows, g.m - i), j, std::min(grid.columns, g.n - j)), one_row);
    }
  });
}

template void gemm(const Gemm<float>&);
template void gemm(const Gemm<double>&);
template void gemm_serial(const Gemm<float>&);
template void gemm_serial(const Gemm<double>&);

}  // namespace tapestry::cpu
