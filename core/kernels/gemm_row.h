// A row vector times a matrix b that is read once: what counts is the memory's speed. The rows of b that come next are
// fetched ahead, since each is too short for the processor to notice by itself. S is the type b is stored in, T the
// type of everything else.
#pragma once

#include "core/kernels/gemm_kernel.h"

namespace tapestry::cpu::detail {

// Sums rows of b scaled by the elements of a into c, kRows at a time so that c is loaded and stored less often.
template <int kRows, class T, class S>
void add_rows(const T* a, const S* b, std::int64_t ldb, T* c, std::int64_t n) {
  using simd::kLanes, simd::Vec;
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
    return load_as<T>(b + r * ldb + j);
  };
  std::int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>)
    simd::store(c + j, step(simd::load(c + j), [&](int r) { return row(r, j); }));
  if (j < n)
    simd::store_partial(
        c + j, step(simd::load_partial(c + j, n - j), [&](int r) { return load_as<T>(b + r * ldb + j, n - j); }),
        n - j);
}

// dots[r] = sum of a[p] b[r * ldb + p] over p.
template <int kRows, class T, class S>
void dot_rows(const T* a, const S* b, std::int64_t ldb, std::int64_t k, T* dots) {
  using simd::kLanes, simd::Vec;
  Vec<T> sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = Vec<T>{};
  std::int64_t p = 0;
  for (; p + kLanes<T> <= k; p += kLanes<T>) {
    const Vec<T> x = simd::load(a + p);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      __builtin_prefetch(b + (kRows + r) * ldb + p, 0, 2);
      sum[r] += x * load_as<T>(b + r * ldb + p);
    }
  }
  if (p < k) {
    const Vec<T> x = simd::load_partial(a + p, k - p);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] += x * load_as<T>(b + r * ldb + p, k - p);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    T total = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) total += sum[r][lane];
    dots[r] = total;
  }
}

// c[j] += sum of a[p] b[p * ldb + j] over p, for n columns that stay in the level 1 cache.
template <class T, class S>
void add_all_rows(const T* a, const S* b, std::int64_t ldb, std::int64_t k, T* c, std::int64_t n) {
  constexpr int kRows = 8;
  std::int64_t p = 0;
  for (; p + kRows <= k; p += kRows) add_rows<kRows>(a + p, b + p * ldb, ldb, c, n);
  for (; p < k; ++p) add_rows<1>(a + p, b + p * ldb, ldb, c, n);
}

// dots[j] of the n rows of b.
template <class T, class S>
void dot_all_rows(const T* a, const S* b, std::int64_t ldb, std::int64_t k, T* dots, std::int64_t n) {
  constexpr int kRows = 8;
  std::int64_t j = 0;
  for (; j + kRows <= n; j += kRows) dot_rows<kRows>(a, b + j * ldb, ldb, k, dots + j);
  for (; j < n; ++j) dot_rows<1>(a, b + j * ldb, ldb, k, dots + j);
}

}  // namespace tapestry::cpu::detail
