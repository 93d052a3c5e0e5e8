// The parts of the packed matrix product: the register tile, and packing of operand blocks into the order it reads.
// A tile of c is kTileRows x kTileVectors vectors; for each p it adds the outer product of a column of op(a) and a row
// of op(b). Every element of c is summed over p in ascending order, whatever the size of the tile it falls in.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "core/kernels/convert.h"
#include "core/kernels/gemm_grid.h"

namespace tapestry::cpu::detail {

// 24 of 32 accumulator registers with AVX-512, 12 of 16 without; eight rows also fit the ways of a level 1 cache when
// the rows of a lie a multiple of 4 KiB apart.
inline constexpr std::int64_t kTileRows = simd::kVectorBytes == 64 ? 8 : 4;
inline constexpr std::int64_t kTileVectors = 3;
template <class T>
inline constexpr std::int64_t kTileColumns = kTileVectors* simd::kLanes<T>;

// A vector of T from memory that holds S: T itself, or 16 bits where T is float; all lanes, or the first `count`.
template <class T, class S>
inline simd::Vec<T> load_as(const S* p) {
  if constexpr (std::is_same_v<T, S>)
    return simd::load(p);
  else
    return simd::load_wide(p);
}
template <class T, class S>
inline simd::Vec<T> load_as(const S* p, std::int64_t count) {
  if constexpr (std::is_same_v<T, S>)
    return simd::load_partial(p, count);
  else
    return simd::load_wide_partial(p, count);
}

// Copies n elements of S as T.
template <class T, class S>
inline void copy_as(const S* from, std::int64_t n, T* to) {
  if constexpr (std::is_same_v<T, S>) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  } else {
    std::int64_t i = 0;
    for (; i + simd::kLanes<T> <= n; i += simd::kLanes<T>) simd::store(to + i, load_as<T>(from + i));
    if (i < n) simd::store_partial(to + i, load_as<T>(from + i, n - i), n - i);
  }
}

// One tile of c += a b: element (i, p) of a is a[i * a_row + p * a_step], row p of b starts at b + p * b_step.
template <class T>
struct Tile {
  std::int64_t k = 0;
  const T* a = nullptr;
  std::int64_t a_row = 0, a_step = 0;
  const T* b = nullptr;
  std::int64_t b_step = 0;
  T* c = nullptr;
  std::int64_t ldc = 0;
  const T* addend = nullptr;  // laid out as c and added to it (c itself, to accumulate), or null
  const T* bias = nullptr;
};

template <class T, int kRows, int kVectors>
void multiply_tile(const Tile<T>& tile) {
  using simd::Vec, simd::kLanes, simd::load;
  Vec<T> sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sum[i][v] = Vec<T>{};

  const T *a = tile.a, *b = tile.b;
  const std::int64_t a_row = tile.a_row;
  for (std::int64_t p = 0; p < tile.k; ++p) {
    Vec<T> row[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + v * kLanes<T>);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vec<T> x = simd::splat(a[i * a_row]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sum[i][v] += x * row[v];
    }
    a += tile.a_step;
    b += tile.b_step;
  }

  if (tile.bias) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sum[i][v] += load(tile.bias + v * kLanes<T>);
  }
  if (tile.addend) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sum[i][v] += load(tile.addend + i * tile.ldc + v * kLanes<T>);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) simd::store(tile.c + i * tile.ldc + v * kLanes<T>, sum[i][v]);
}

// multiply_tile for a number of rows and vectors known at run time.
template <class T>
void multiply_tile(const Tile<T>& tile, std::int64_t rows, std::int64_t vectors) {
  static constexpr auto kKernels = []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<void (*)(const Tile<T>&), sizeof...(I)>{
        &multiply_tile<T, 1 + I / kTileVectors, 1 + I % kTileVectors>...};
  }
  (std::make_index_sequence<kTileRows * kTileVectors>{});
  kKernels[static_cast<std::size_t>((rows - 1) * kTileVectors + vectors - 1)](tile);
}

// The tile at the right edge of c, whose last vector is not full: computed aside, then the columns that exist are kept.
template <class T>
void multiply_edge_tile(Tile<T> tile, std::int64_t rows, std::int64_t columns) {
  alignas(64) T buffer[kTileRows * kTileColumns<T>];
  const Tile<T> out = tile;
  tile.c = buffer;
  tile.ldc = kTileColumns<T>;
  tile.addend = nullptr;
  tile.bias = nullptr;
  multiply_tile(tile, rows, divide_up(columns, simd::kLanes<T>));
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* from = buffer + i * kTileColumns<T>;
    T* to = out.c + i * out.ldc;
    for (std::int64_t j = 0; j < columns; ++j) {
      T value = from[j];
      if (out.bias) value += out.bias[j];
      if (out.addend) value += out.addend[i * out.ldc + j];
      to[j] = value;
    }
  }
}

// Rows 0..k of a strip of b, `columns` wide: to[p * step + j] = b[p * ldb + j], zeros up to step.
template <class T, class S>
void pack_rows(const S* b, std::int64_t ldb, std::int64_t k, std::int64_t columns, std::int64_t step, T* to) {
  if (columns == kTileColumns<T>) {
    for (std::int64_t p = 0; p < k; ++p) copy_as(b + p * ldb, kTileColumns<T>, to + p * step);
    return;
  }
  for (std::int64_t p = 0; p < k; ++p) {
    copy_as(b + p * ldb, columns, to + p * step);
    std::fill(to + p * step + columns, to + (p + 1) * step, T(0));
  }
}

// Transposes a square of vectors by log2(lanes) perfect shuffles.
template <class T>
inline void transpose_square(simd::Vec<T> (&rows)[simd::kLanes<T>]) {
  constexpr int n = simd::kLanes<T>;
  using Index = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  using Lanes = simd::Vec<Index>;
  Lanes low, high;
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    low[i] = i / 2 + i % 2 * n;
    high[i] = low[i] + n / 2;
  }
#pragma GCC unroll 4
  for (int stage = 1; stage < n; stage *= 2) {
    simd::Vec<T> next[n];
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + n / 2], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + n / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) rows[i] = next[i];
  }
}

// The same strip of a transposed b: to[p * step + j] = b[j * ldb + p], zeros up to step.
template <class T, class S>
void pack_transposed(const S* b, std::int64_t ldb, std::int64_t k, std::int64_t columns, std::int64_t step, T* to) {
  constexpr int n = simd::kLanes<T>;
  for (std::int64_t j = 0; j < step; j += n) {
    const std::int64_t width = std::min<std::int64_t>(n, columns - j);
    for (std::int64_t p = 0; p < k; p += n) {
      const std::int64_t depth = std::min<std::int64_t>(n, k - p);
      const S* from = b + j * ldb + p;
      T* out = to + p * step + j;
      simd::Vec<T> rows[n];
      if (width == n && depth == n) {
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) rows[i] = load_as<T>(from + i * ldb);
        transpose_square<T>(rows);
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) simd::store(out + i * step, rows[i]);
      } else {
        for (std::int64_t q = 0; q < depth; ++q)
          for (std::int64_t i = 0; i < n; ++i) out[q * step + i] = i < width ? static_cast<T>(from[i * ldb + q]) : T(0);
      }
    }
  }
}

// Distance between packed tiles of a, k long: a line more than they fill, or all of them would share a few cache sets.
template <class T>
constexpr std::int64_t tile_stride(std::int64_t k) {
  return kTileRows * k + 64 / static_cast<std::int64_t>(sizeof(T));
}

// Rows of a transposed a, in tiles of kTileRows: to[i / kTileRows * tile_stride + p * kTileRows + i % kTileRows].
template <class T, class S>
void pack_tiles(const S* a, std::int64_t lda, std::int64_t rows, std::int64_t k, T* to) {
  const std::int64_t full = rows / kTileRows;
  for (std::int64_t p = 0; p < k; ++p) {
    const S* from = a + p * lda;
    T* out = to + p * kTileRows;
    for (std::int64_t t = 0; t < full; ++t, from += kTileRows, out += tile_stride<T>(k)) copy_as(from, kTileRows, out);
    copy_as(from, rows - full * kTileRows, out);
  }
}

// Memory of one thread that grows to the largest block it was asked for; 64-byte aligned.
template <class T>
class Scratch {
 public:
  T* get(std::int64_t count) {
    if (count > capacity_) {
      memory_.reset();
      memory_.reset(static_cast<T*>(::operator new(static_cast<std::size_t>(count) * sizeof(T), kAlignment)));
      capacity_ = count;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<T, Free> memory_;
  std::int64_t capacity_ = 0;
};

}  // namespace tapestry::cpu::detail
