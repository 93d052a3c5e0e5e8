// Walking rows in vectors: what the CPU kernels over the last axis share.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/kernels/simd_math.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace tapestry::cpu {

// Uninitialised scratch memory, counted as workspace.
inline Tensor workspace(const Shape& shape, DType dtype) {
  const MemoryScope scope(MemoryCategory::workspace);
  return empty(shape, dtype);
}

// Work below this many elements is not worth a second thread.
inline constexpr std::int64_t kSerialElements = 1 << 15;

// The grain of a parallel_for whose items hold `elements` elements each.
inline std::int64_t grain_for(std::int64_t elements) {
  return std::max<std::int64_t>(1, kSerialElements / std::max<std::int64_t>(elements, 1));
}

// Calls body(row) for every row, spread over threads.
template <class Body>
void parallel_rows(std::int64_t rows, std::int64_t width, Body&& body) {
  parallel_for(rows, grain_for(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

// Calls f(i, count) for each vector of n elements: i is its first element and count its number of elements, a constant
// of the type for full vectors, so that load_partial and store_partial cost no more than load and store.
template <class T, class F>
inline void for_each_vector(std::int64_t n, F&& f) {
  constexpr std::int64_t kStep = simd::kLanes<T>;
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep) f(i, std::integral_constant<std::int64_t, kStep>{});
  if (i < n) f(i, n - i);
}

// Combines f(i, count) of all vectors of n elements. Four independent chains hide the latency of `combine`; which
// vector joins which chain depends on n only.
template <class T, class A, class Combine, class F>
inline A reduce_vectors(std::int64_t n, A identity, Combine&& combine, F&& f) {
  constexpr std::int64_t kStep = simd::kLanes<T>;
  constexpr std::integral_constant<std::int64_t, kStep> kFull;
  A a = identity, b = identity, c = identity, d = identity;
  std::int64_t i = 0;
  for (; i + 4 * kStep <= n; i += 4 * kStep) {
    a = combine(a, f(i, kFull));
    b = combine(b, f(i + kStep, kFull));
    c = combine(c, f(i + 2 * kStep, kFull));
    d = combine(d, f(i + 3 * kStep, kFull));
  }
  for (; i + kStep <= n; i += kStep) a = combine(a, f(i, kFull));
  if (i < n) b = combine(b, f(i, n - i));
  return combine(combine(a, b), combine(c, d));
}

// Sums of f(i, count) over a row, k at once; f returns k vectors, whose lanes past the end must hold 0.
template <class T, std::size_t k>
using Vectors = std::array<simd::Vec<T>, k>;
template <class T, std::size_t k, class F>
inline std::array<T, k> row_sums(std::int64_t n, F&& f) {
  const auto add = [](Vectors<T, k> a, const Vectors<T, k>& b) {
    for (std::size_t j = 0; j < k; ++j) a[j] += b[j];
    return a;
  };
  const Vectors<T, k> total = reduce_vectors<T>(n, Vectors<T, k>{}, add, f);
  std::array<T, k> sums;
  for (std::size_t j = 0; j < k; ++j) sums[j] = simd::sum(total[j]);
  return sums;
}
template <class T, class F>
inline T row_sum(std::int64_t n, F&& f) {
  return row_sums<T, 1>(n, [&](std::int64_t i, auto count) { return Vectors<T, 1>{f(i, count)}; })[0];
}

template <class T>
inline constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

// What is subtracted before exp: the largest element, or 0 where all are -inf, so that no difference is inf - inf.
// NaN is passed over here; exp brings it back.
template <class T>
inline T row_shift(const T* x, std::int64_t n) {
  const auto larger = [](auto a, auto b) { return b > a ? b : a; };
  const auto lanes = reduce_vectors<T>(n, simd::splat(kMinusInfinity<T>), larger, [x](std::int64_t i, auto count) {
    return simd::load_partial(x + i, count, kMinusInfinity<T>);
  });
  const T max = simd::fold<simd::kLanes<T>, T>(lanes, larger);
  return max == kMinusInfinity<T> ? T(0) : max;
}

// Sum of exp(x - shift); 0 where all x are -inf. Busy with arithmetic, it has the next row fetched meanwhile.
template <class T>
inline T row_exp_sum(const T* x, std::int64_t n, T shift) {
  return row_sum<T>(n, [=](std::int64_t i, auto count) {
    __builtin_prefetch(x + n + i, 0, 2);
    return simd::exp(simd::load_partial(x + i, count, kMinusInfinity<T>) - shift);
  });
}

// Writes v, or adds it to what is there. Memory that is overwritten is not read.
template <class T>
inline void write_vector(T* p, simd::Vec<T> v, std::int64_t count, bool add) {
  if (add) v += simd::load_partial(p, count);
  simd::store_partial(p, v, count);
}

}  // namespace tapestry::cpu
