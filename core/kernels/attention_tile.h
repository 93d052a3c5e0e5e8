// The products inside attention, on the register tile of the matrix product. The left factor is read in place; the
// right one is packed with rows of whole vectors, so no tile has an edge. Each tile may leave out the part of the sum
// in which the left factor is known to be zero (the hidden triangle of causal attention); the order of a sum is always
// that of k.
#pragma once

#include <algorithm>

#include "core/kernels/gemm_kernel.h"
#include "core/kernels/simd.h"

namespace tapestry::cpu::attn {

using detail::kTileColumns;
using detail::kTileRows;
using simd::kLanes;

template <class T>
constexpr std::int64_t whole_vectors(std::int64_t n) {
  return detail::round_up(n, kLanes<T>);
}

// Element (i, k) is data[i * row_stride + k * k_stride].
template <class T>
struct Left {
  const T* data = nullptr;
  std::int64_t row_stride = 0, k_stride = 1;
};

// kTileColumns columns of row k of strip s start at data + s * strip_stride + k * row_stride.
template <class T>
struct Right {
  const T* data = nullptr;
  std::int64_t row_stride = 0, strip_stride = 0;
};

// What some rows of a product need: the sum over k in [begin, end), for columns below `columns` (in whole vectors).
struct Extent {
  std::int64_t begin = 0, end = 0, columns = 0;
};

// c[i, j] (+)= sum over k of a(i, k) b(k, j) for i < rows, within extent(first row, last row) of every tile.
template <class T, class ExtentOf>
void product(std::int64_t rows, std::int64_t columns, const Left<T>& a, const Right<T>& b, T* c,
             std::int64_t row_stride, bool add, ExtentOf&& extent) {
  for (std::int64_t j = 0; j < columns; j += kTileColumns<T>, c += kTileColumns<T>) {
    const T* strip = b.data + j / kTileColumns<T> * b.strip_stride;
    for (std::int64_t i = 0; i < rows; i += kTileRows) {
      const std::int64_t height = std::min(kTileRows, rows - i);
      const Extent e = extent(i, i + height - 1);
      const std::int64_t vectors = std::min(detail::kTileVectors, (e.columns - j) / kLanes<T>);
      if (vectors <= 0) continue;
      detail::multiply_tile(detail::Tile<T>{.k = std::max<std::int64_t>(0, e.end - e.begin),
                                            .a = a.data + i * a.row_stride + e.begin * a.k_stride,
                                            .a_row = a.row_stride,
                                            .a_step = a.k_stride,
                                            .b = strip + e.begin * b.row_stride,
                                            .b_step = b.row_stride,
                                            .c = c + i * row_stride,
                                            .ldc = row_stride,
                                            .addend = add ? c + i * row_stride : nullptr},
                            height, vectors);
    }
  }
}

// Rows that are summed with weights: padded for product(), and where they lie for the sum element by element.
template <class T>
struct PackedRows {
  Right<T> padded;
  const T* source = nullptr;
  std::int64_t source_stride = 0;
  bool finite = true;
};

// Packs x [rows, columns] into `out` (rows * whole_vectors(columns) elements).
template <class T>
PackedRows<T> pack_rows(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* out) {
  const std::int64_t width = whole_vectors<T>(columns);
  simd::Vec<T> check{};  // x - x is 0 for finite x and NaN for all others
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < width; j += kLanes<T>) {
      const T* from = x + i * stride + j;
      const std::int64_t count = columns - j;
      const simd::Vec<T> v = count >= kLanes<T> ? simd::load(from) : simd::load_partial(from, count);
      check += v - v;
      simd::store(out + i * width + j, v);
    }
  }
  return {{out, width, kTileColumns<T>}, x, stride, simd::sum(check) == T(0)};
}

// Packs the transpose of x [rows, columns] into `out` (columns * round_up(rows, kTileColumns) elements).
template <class T>
Right<T> pack_columns(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* out) {
  for (std::int64_t i = 0; i < rows; i += kTileColumns<T>)
    detail::pack_transposed(x + i * stride, stride, columns, std::min(kTileColumns<T>, rows - i), kTileColumns<T>,
                            out + i * columns);
  return {out, kTileColumns<T>, columns * kTileColumns<T>};
}

// c[i, :] (+)= sum over k of a(i, k) b[k, :], as product() does. If b holds NaN or inf, the sum visits only the k for
// which visible(i, k), since a weight of zero would not silence them.
template <class T, class ExtentOf, class Visible>
void weighted_sum(std::int64_t rows, std::int64_t columns, const Left<T>& a, const PackedRows<T>& b, T* c,
                  std::int64_t row_stride, bool add, ExtentOf&& extent, Visible&& visible) {
  if (b.finite) return product(rows, columns, a, b.padded, c, row_stride, add, extent);
  for (std::int64_t i = 0; i < rows; ++i) {
    T* sum = c + i * row_stride;
    if (!add) std::fill_n(sum, columns, T(0));
    const Extent e = extent(i, i);
    for (std::int64_t k = e.begin; k < e.end; ++k) {
      if (!visible(i, k)) continue;
      const T weight = a.data[i * a.row_stride + k * a.k_stride];
      const T* row = b.source + k * b.source_stride;
      for (std::int64_t j = 0; j < columns; ++j) sum[j] += weight * row[j];
    }
  }
}

template <class T>
T dot(const T* a, const T* b, std::int64_t n) {
  simd::Vec<T> sum{};
  std::int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) sum += simd::load(a + i) * simd::load(b + i);
  if (i < n) sum += simd::load_partial(a + i, n - i) * simd::load_partial(b + i, n - i);
  return simd::sum(sum);
}

}  // namespace tapestry::cpu::attn
