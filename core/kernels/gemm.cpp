// c = op(a) op(b) + bias + addend, blocked: panels of b that fit the level 2 cache are packed in strips of one tile's
// width; a is read in place where its rows are contiguous and packed where it is transposed. k is cut into blocks by
// its size alone and c takes the blocks in ascending order, so neither the split over threads nor the panels change a
// bit. A product of one row reads b once, without packing.
#include "core/kernels/gemm.h"

#include "core/kernels/gemm_row.h"
#include "core/kernels/pointwise_formulas.h"
#include "core/kernels/rows.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

using detail::divide_up, detail::round_up, detail::part, detail::kTileColumns, detail::kTileRows;
using simd::kLanes;

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

template <class T>
struct Scratches {
  detail::Scratch<T> a, b;
};
template <class T>
Scratches<T>& scratch() {
  static thread_local Scratches<T> instance;
  return instance;
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

// One row: c is a row vector times op(b).
template <class T>
void multiply_row(const Gemm<T>& g) {
  const T* a = g.a;
  if (g.transpose_a) {
    T* gathered = scratch<T>().a.get(g.k);
    for (std::int64_t p = 0; p < g.k; ++p) gathered[p] = g.a[p * g.lda];
    a = gathered;
  }
  if (g.transpose_b) {
    constexpr std::int64_t kRows = 8;
    for (std::int64_t j = 0; j < g.n; j += kRows) {
      const std::int64_t rows = std::min(kRows, g.n - j);
      T dots[kRows];
      detail::dot_all_rows(a, g.b + j * g.ldb, g.ldb, g.k, dots, rows);
      for (std::int64_t r = 0; r < rows; ++r) {
        T value = dots[r];
        if (g.bias) value += g.bias[j + r];
        if (g.add) value += g.c[j + r];
        g.c[j + r] = value;
      }
    }
    return;
  }
  constexpr std::int64_t kColumns = 8192 / sizeof(T);  // of c, to stay in the level 1 cache
  for (std::int64_t j = 0; j < g.n; j += kColumns) {
    const std::int64_t columns = std::min(kColumns, g.n - j);
    T* c = g.c + j;
    if (!g.add) std::fill_n(c, columns, T(0));
    if (g.bias)
      for (std::int64_t i = 0; i < columns; ++i) c[i] += g.bias[j + i];
    detail::add_all_rows(a, g.b + j, g.ldb, g.k, c, columns);
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

}  // namespace

template <class T>
void gemm_serial(const Gemm<T>& g) {
  multiply_serial(g, g.m == 1);
}

template <class T>
void gemm(const Gemm<T>& g) {
  const bool one_row = g.m == 1;
  const std::int64_t work = one_row ? g.n * g.k / detail::kReadsPerThread : g.m * g.n * g.k / detail::kWorkPerThread;
  const std::int64_t threads = std::clamp<std::int64_t>(work, 1, num_threads());
  if (threads == 1) return multiply_serial(g, one_row);
  const detail::Grid grid =
      one_row ? detail::Grid{1, round_up(divide_up(g.n, threads), kLanes<T>)}
              : detail::choose_grid(g.m, g.n, threads,
                                    {kTileRows, kTileColumns<T>, kPanelColumns<T>, 8, g.transpose_a ? 8 : 4});
  detail::for_each_part(g, grid, [&](const Gemm<T>& p) { multiply_serial(p, one_row); });
}

template void gemm(const Gemm<float>&);
template void gemm(const Gemm<double>&);
template void gemm_serial(const Gemm<float>&);
template void gemm_serial(const Gemm<double>&);

}  // namespace tapestry::cpu
