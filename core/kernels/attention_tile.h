// The products inside attention, on register tiles. Their factors are of type E: the type T of the scores, or BFloat16
// in pairs (attention_pairs.h). The left factor is read as it lies; the right one is packed with rows of whole vectors,
// so no tile has an edge. Each tile may leave out the part of the sum in which the left factor is known to be zero (the
// hidden triangle of causal attention); the order of a sum is always that of k.
#pragma once

#include <algorithm>

#include "core/kernels/attention_pairs.h"
#include "core/kernels/convert.h"
#include "core/kernels/gemm_kernel.h"
#include "core/kernels/simd.h"

namespace tapestry::cpu::attn {

using detail::multiply_tile;
using detail::pack_transposed;
using simd::kLanes;

// How a factor of type E is laid out: this many elements of a sum stand side by side.
template <class E>
inline constexpr std::int64_t kStep = std::same_as<E, BFloat16> ? 2 : 1;
template <class E>
inline constexpr std::int64_t kTileRows = std::same_as<E, BFloat16> ? kPairTileRows : detail::kTileRows;
template <class E>
inline constexpr std::int64_t kTileVectors = std::same_as<E, BFloat16> ? kPairTileVectors : detail::kTileVectors;
template <class E>
inline constexpr std::int64_t kTileColumns = std::same_as<E, BFloat16> ? kPairTileColumns : kTileVectors<E>* kLanes<E>;
template <class E>
using TileFor = std::conditional_t<std::same_as<E, BFloat16>, PairTile, detail::Tile<E>>;

template <class T>
constexpr std::int64_t whole_vectors(std::int64_t n) {
  return detail::round_up(n, kLanes<T>);
}

// Some rows of a tensor, `stride` elements apart.
template <class E>
struct Rows {
  const E* data = nullptr;
  std::int64_t stride = 0;
};

// Element (i, k) is data[i * row_stride + k * k_stride]; pair k of BFloat16 starts there.
template <class E>
struct Left {
  const E* data = nullptr;
  std::int64_t row_stride = 0, k_stride = kStep<E>;
  E at(std::int64_t i, std::int64_t k) const { return data[i * row_stride + k / kStep<E> * k_stride + k % kStep<E>]; }
};

// A tile's columns of row k (or pair of rows k) of strip s start at data + s * strip_stride + k * row_stride.
template <class E>
struct Right {
  const E* data = nullptr;
  std::int64_t row_stride = 0, strip_stride = 0;
};

// What some rows of a product need: the sum over k in [begin, end), for columns below `columns` (in whole vectors).
struct Extent {
  std::int64_t begin = 0, end = 0, columns = 0;
};

// c[i, j] (+)= sum over k of a(i, k) b(k, j) for i < rows, within extent(first row, last row) of every tile.
template <class T, class E, class ExtentOf>
void product(std::int64_t rows, std::int64_t columns, const Left<E>& a, const Right<E>& b, T* c,
             std::int64_t row_stride, bool add, ExtentOf&& extent) {
  for (std::int64_t j = 0; j < columns; j += kTileColumns<E>, c += kTileColumns<E>) {
    const E* strip = b.data + j / kTileColumns<E> * b.strip_stride;
    for (std::int64_t i = 0; i < rows; i += kTileRows<E>) {
      const std::int64_t height = std::min(kTileRows<E>, rows - i);
      const Extent e = extent(i, i + height - 1);
      const std::int64_t vectors = std::min(kTileVectors<E>, (e.columns - j) / kLanes<T>);
      if (vectors <= 0) continue;
      const std::int64_t first = e.begin / kStep<E>, end = detail::divide_up(e.end, kStep<E>);
      multiply_tile(TileFor<E>{.k = std::max<std::int64_t>(0, end - first),
                               .a = a.data + i * a.row_stride + first * a.k_stride,
                               .a_row = a.row_stride,
                               .a_step = a.k_stride,
                               .b = strip + first * b.row_stride,
                               .b_step = b.row_stride,
                               .c = c + i * row_stride,
                               .ldc = row_stride,
                               .addend = add ? c + i * row_stride : nullptr},
                    height, vectors);
    }
  }
}

// Rows that are summed with weights.
template <class E>
struct PackedRows {
  Right<E> right;
  bool finite = true;
  E at(std::int64_t k, std::int64_t j) const {
    return right.data[j / kTileColumns<E> * right.strip_stride + k / kStep<E> * right.row_stride +
                      j % kTileColumns<E> * kStep<E> + k % kStep<E>];
  }
};

// Columns of the packed factors: whole vectors, and whole strips of pairs.
template <class E>
constexpr std::int64_t packed_columns(std::int64_t n) {
  return std::same_as<E, BFloat16> ? detail::round_up(n, kPairTileColumns) : whole_vectors<E>(n);
}

// Packs x [rows, columns] into `out`: packed_columns(columns) elements for each row, an even number of rows in pairs.
template <class E>
PackedRows<E> pack_rows(const Rows<E>& x, std::int64_t rows, std::int64_t columns, E* out) {
  if constexpr (std::same_as<E, BFloat16>) {
    const std::int64_t strip = detail::round_up(rows, 2) * kTileColumns<E>;
    pack_row_pairs(x.data, x.stride, rows, columns, strip, out);
    return {{out, 2 * kTileColumns<E>, strip}, all_finite(x.data, x.stride, rows, columns)};
  } else {
    const std::int64_t width = whole_vectors<E>(columns);
    simd::Vec<E> check{};  // x - x is 0 for finite x and NaN for all others
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < width; j += kLanes<E>) {
        const E* from = x.data + i * x.stride + j;
        const std::int64_t count = columns - j;
        const simd::Vec<E> v = count >= kLanes<E> ? simd::load(from) : simd::load_partial(from, count);
        check += v - v;
        simd::store(out + i * width + j, v);
      }
    }
    return {{out, width, kTileColumns<E>}, simd::sum(check) == E(0)};
  }
}

// Packs the transpose of x [rows, columns] into `out` (columns * rows in whole tiles).
template <class E>
Right<E> pack_columns(const Rows<E>& x, std::int64_t rows, std::int64_t columns, E* out) {
  const std::int64_t strip = detail::round_up(columns, kStep<E>) * kTileColumns<E>;
  for (std::int64_t i = 0; i < rows; i += kTileColumns<E>)
    pack_transposed(x.data + i * x.stride, x.stride, columns, std::min(kTileColumns<E>, rows - i), kTileColumns<E>,
                    out + i / kTileColumns<E> * strip);
  return {out, kStep<E> * kTileColumns<E>, strip};
}

// c[i, :] (+)= sum over k of a(i, k) b[k, :], as product() does. If b holds NaN or inf, the sum visits only the k for
// which visible(i, k), since a weight of zero would not silence them.
template <class T, class E, class ExtentOf, class Visible>
void weighted_sum(std::int64_t rows, std::int64_t columns, const Left<E>& a, const PackedRows<E>& b, T* c,
                  std::int64_t row_stride, bool add, ExtentOf&& extent, Visible&& visible) {
  if (b.finite) return product(rows, columns, a, b.right, c, row_stride, add, extent);
  for (std::int64_t i = 0; i < rows; ++i) {
    T* sum = c + i * row_stride;
    if (!add) std::fill_n(sum, columns, T(0));
    const Extent e = extent(i, i);
    for (std::int64_t k = e.begin; k < e.end; ++k) {
      if (!visible(i, k)) continue;
      const T weight = static_cast<T>(a.at(i, k));
      for (std::int64_t j = 0; j < columns; ++j) sum[j] += weight * static_cast<T>(b.at(k, j));
    }
  }
}

// Scores [rows, columns] (whole vectors) as a left factor, and their transpose as one: in place, or rounded into `out`.
template <class T, class E>
Left<E> left_factor(const T* scores, std::int64_t rows, std::int64_t columns, std::int64_t stride, E* out) {
  if constexpr (std::same_as<T, E>) {
    return {scores, stride};
  } else {
    round_rows(scores, stride, rows, columns, out);
    return {out, stride};
  }
}
template <class T, class E>
Left<E> left_transposed(const T* scores, std::int64_t rows, std::int64_t columns, std::int64_t stride, E* out) {
  if constexpr (std::same_as<T, E>) {
    return {scores, 1, stride};
  } else {
    round_row_pairs(scores, stride, rows, columns, out);
    return {out, 2, 2 * stride};
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
template <simd::SixteenBit H>
float dot(const H* a, const H* b, std::int64_t n) {
  simd::Vec<float> sum{};
  for (std::int64_t i = 0; i < n; i += kLanes<float>) {
    const std::int64_t count = std::min<std::int64_t>(kLanes<float>, n - i);
    sum += simd::load_wide_partial(a + i, count) * simd::load_wide_partial(b + i, count);
  }
  return simd::sum(sum);
}

}  // namespace tapestry::cpu::attn
