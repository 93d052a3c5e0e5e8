// What the CPU kernels of the normalisations share: exact moments of a row, and weight gradients summed in chunks.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/kernels/rows.h"
#include "core/kernels/widen.h"

namespace tapestry::cpu {

// A rounded mean is off by up to half a unit in its last place, which shows where the mean is large against the spread.
// Deviations d = x - mean are nearly exact, so their average, `rest`, is what the mean lacks:
// avg(d^2) - rest^2 is the variance (Chan, Golub & LeVeque 1983), d - rest the deviation from the true mean.
template <class T>
struct Moments {
  T mean, rest, variance;  // biased
};
template <class T>
Moments<T> row_moments(const T* x, std::int64_t n) {
  const T width = static_cast<T>(n);
  const T mean = row_sum<T>(n, [=](std::int64_t i, auto count) { return simd::load_partial(x + i, count); }) / width;
  const auto [d_sum, d2_sum] = row_sums<T, 2>(n, [=](std::int64_t i, auto count) {
    const auto d = simd::load_partial(x + i, count, mean) - mean;
    return Vectors<T, 2>{d, d * d};
  });
  const T rest = d_sum / width;
  return {mean, rest, std::max(d2_sum / width - rest * rest, T(0))};
}

// Weight gradients are summed in chunks of rows, then over the chunks; both orders follow from the shape alone.
struct RowChunks {
  static constexpr std::int64_t kMaxChunks = 64, kMinRows = 16;
  explicit RowChunks(std::int64_t total)
      : rows(total),
        each(std::max(kMinRows, (total + kMaxChunks - 1) / kMaxChunks)),
        count((total + each - 1) / each) {}
  std::int64_t end(std::int64_t chunk) const { return std::min((chunk + 1) * each, rows); }

  std::int64_t rows, each, count;
};

// target = or += the sum of `chunks` vectors that lie `stride` apart.
template <class T>
void sum_chunks(const T* partial, std::int64_t chunks, std::int64_t stride, std::int64_t n, const Grad& target) {
  tapestry::detail::Widened<Grad> wide(target);
  const bool add = wide.get().claim();
  T* out = wide.get().data<T>();
  constexpr std::int64_t kBlock = 64;
  parallel_for((n + kBlock - 1) / kBlock, grain_for(chunks * kBlock), [=](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kBlock, columns = std::min(end * kBlock, n) - first;
    for_each_vector<T>(columns, [=](std::int64_t i, auto count) {
      simd::Vec<T> total{};
      for (std::int64_t c = 0; c < chunks; ++c) total += simd::load_partial(partial + c * stride + first + i, count);
      write_vector(out + first + i, total, count, add);
    });
  });
  wide.finish();
}

}  // namespace tapestry::cpu
