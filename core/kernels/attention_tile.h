// The small products inside attention: c (+)= a b, where b is packed in strips one vector wide and a is read in place.
// A register tile is kTileRows rows by one or two strips. The sum over k runs in order for every element of c, so its
// bits do not depend on how the rows were grouped. Each tile may leave out a part of k in which a is known to be zero
// (the hidden triangle of causal attention).
#pragma once

#include <algorithm>
#include <limits>

#include "core/kernels/simd.h"

namespace tapestry::tile {

inline constexpr std::int64_t kTileRows = 6;

template <class T>
constexpr std::int64_t round_to_lanes(std::int64_t n) {
  return (n + simd::kLanes<T> - 1) / simd::kLanes<T> * simd::kLanes<T>;
}

// Element (i, k) is data[i * row_stride + k * k_stride].
template <class T>
struct Matrix {
  const T* data = nullptr;
  std::int64_t row_stride = 0, k_stride = 1;
};

// Row k of strip s starts at data + (s * depth + k) * lanes; lanes past the last column are zero.
template <class T>
struct Strips {
  const T* data = nullptr;
  std::int64_t depth = 0;
};

struct Range {
  std::int64_t begin = 0, end = 0;
};

template <class T>
struct TileCall {
  Matrix<T> a;
  const T* b = nullptr;
  std::int64_t strip_stride = 0;
  T* c = nullptr;
  std::int64_t row_stride = 0;  // of c
  Range k;
  bool add = false;
};

template <class T, int rows, int strips>
inline void run_tile(const TileCall<T>& call) {
  constexpr int kLanes = simd::kLanes<T>;
  simd::Vec<T> sum[rows][strips] = {};
  const T* a = call.a.data + call.k.begin * call.a.k_stride;
  const T* b = call.b + call.k.begin * kLanes;
  for (std::int64_t k = call.k.begin; k < call.k.end; ++k, a += call.a.k_stride, b += kLanes) {
    simd::Vec<T> right[strips];
#pragma GCC unroll 2
    for (int s = 0; s < strips; ++s) right[s] = simd::load(b + s * call.strip_stride);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const simd::Vec<T> left = simd::splat(a[i * call.a.row_stride]);
#pragma GCC unroll 2
      for (int s = 0; s < strips; ++s) sum[i][s] += left * right[s];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int s = 0; s < strips; ++s) {
      T* c = call.c + i * call.row_stride + s * kLanes;
      simd::store(c, call.add ? simd::load(c) + sum[i][s] : sum[i][s]);
    }
  }
}

template <class T, int rows = kTileRows>
inline void run_tile(std::int64_t row_count, std::int64_t strip_count, const TileCall<T>& call) {
  if constexpr (rows > 1) {
    if (row_count < rows) return run_tile<T, rows - 1>(row_count, strip_count, call);
  }
  strip_count == 2 ? run_tile<T, rows, 2>(call) : run_tile<T, rows, 1>(call);
}

// c[i, j] (+)= sum over k of a(i, k) b(k, j) for i < rows and j < columns, a multiple of the lanes.
// k_range(first row, last row, first column) gives the part of k that a tile needs.
template <class T, class KRange>
void product(std::int64_t rows, std::int64_t columns, const Matrix<T>& a, const Strips<T>& b, T* c,
             std::int64_t row_stride, bool add, KRange&& k_range) {
  constexpr std::int64_t kLanes = simd::kLanes<T>;
  for (std::int64_t j = 0; j < columns; j += 2 * kLanes) {
    for (std::int64_t i = 0; i < rows; i += kTileRows) {
      const std::int64_t height = std::min(kTileRows, rows - i);
      run_tile<T>(height, std::min<std::int64_t>(2, (columns - j) / kLanes),
                  TileCall<T>{.a = {a.data + i * a.row_stride, a.row_stride, a.k_stride},
                              .b = b.data + j * b.depth,
                              .strip_stride = b.depth * kLanes,
                              .c = c + i * row_stride + j,
                              .row_stride = row_stride,
                              .k = k_range(i, i + height - 1, j),
                              .add = add});
    }
  }
}

// A matrix whose rows are summed with weights: in strips for product(), and where it lies for the per-element path.
template <class T>
struct PackedRows {
  Strips<T> strips;
  const T* source = nullptr;
  std::int64_t source_stride = 0;
  bool finite = true;
};

// Packs x [rows, columns] into `out` (rows * round_to_lanes(columns) elements).
template <class T>
PackedRows<T> pack_rows(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* out) {
  constexpr std::int64_t kLanes = simd::kLanes<T>;
  const T* const packed = out;
  simd::Vec<T> check{};  // x - x is 0 for finite x and NaN for all others
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    const std::int64_t count = std::min(kLanes, columns - j);
    for (std::int64_t i = 0; i < rows; ++i, out += kLanes) {
      const T* from = x + i * stride + j;
      const simd::Vec<T> v = count == kLanes ? simd::load(from) : simd::load_partial(from, count);
      check += v - v;
      simd::store(out, v);
    }
  }
  return {{packed, rows}, x, stride, simd::sum(check) == T(0)};
}

// Packs the transpose of x [rows, columns] into `out` (columns * round_to_lanes(rows) elements).
template <class T>
Strips<T> pack_transposed(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* out) {
  constexpr std::int64_t kLanes = simd::kLanes<T>;
  for (std::int64_t i = 0; i < rows; i += kLanes) {
    T* strip = out + i * columns;
    const std::int64_t count = std::min(kLanes, rows - i);
    if (count < kLanes) std::fill_n(strip, kLanes * columns, T(0));
    for (std::int64_t lane = 0; lane < count; ++lane) {
      const T* from = x + (i + lane) * stride;
      for (std::int64_t j = 0; j < columns; ++j) strip[j * kLanes + lane] = from[j];
    }
  }
  return {out, columns};
}

// c[i, :] (+)= sum over k of a(i, k) b[k, :], as product() does. If b holds NaN or inf, the sum visits only the k for
// which visible(i, k), since a weight of zero would not silence them.
template <class T, class KRange, class Visible>
void weighted_sum(std::int64_t rows, std::int64_t columns, const Matrix<T>& a, const PackedRows<T>& b, T* c,
                  std::int64_t row_stride, bool add, KRange&& k_range, Visible&& visible) {
  if (b.finite) return product(rows, round_to_lanes<T>(columns), a, b.strips, c, row_stride, add, k_range);
  for (std::int64_t i = 0; i < rows; ++i) {
    T* sum = c + i * row_stride;
    if (!add) std::fill_n(sum, columns, T(0));
    const Range range = k_range(i, i, 0);
    for (std::int64_t k = range.begin; k < range.end; ++k) {
      if (!visible(i, k)) continue;
      const T weight = a.data[i * a.row_stride + k * a.k_stride];
      const T* row = b.source + k * b.source_stride;
      for (std::int64_t j = 0; j < columns; ++j) sum[j] += weight * row[j];
    }
  }
}

template <class T>
T dot(const T* a, const T* b, std::int64_t n) {
  constexpr std::int64_t kLanes = simd::kLanes<T>;
  simd::Vec<T> sum{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum += simd::load(a + i) * simd::load(b + i);
  if (i < n) sum += simd::load_partial(a + i, n - i) * simd::load_partial(b + i, n - i);
  return simd::sum(sum);
}

}  // namespace tapestry::tile
