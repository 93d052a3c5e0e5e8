// One row at a time: the maximum, the sum of exp(x - max), then the outputs; the row stays in cache between passes.
// Saved: the output. A row of -inf only is shifted by 0 instead of its maximum, so that its sum is 0 and not NaN.
#include "core/kernels/softmax.h"

#include <cmath>

#include "core/kernels/rows.h"
#include "core/kernels/simd_math.h"

namespace tapestry::cpu {

namespace {

template <class T>
constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

template <class T>
T row_shift(const T* x, std::int64_t n) {
  const T max = row_max(x, n);
  return max == kMinusInfinity<T> ? T(0) : max;
}

template <class T>
void softmax_row(const T* x, T* y, std::int64_t n) {
  const T shift = row_shift(x, n);
  const T total = row_sum<T>(n, [=](std::int64_t i, auto count) {
    const auto e = simd::exp(simd::load_partial(x + i, count, kMinusInfinity<T>) - shift);
    simd::store_partial(y + i, e, count);
    return e;
  });
  const T factor = total == 0 ? T(0) : 1 / total;
  for_each_vector<T>(n, [=](std::int64_t i, auto count) {
    simd::store_partial(y + i, simd::load_partial(y + i, count) * factor, count);
  });
}

template <class T>
void log_softmax_row(const T* x, T* y, std::int64_t n) {
  const T shift = row_shift(x, n);
  const T total = row_sum<T>(n, [=](std::int64_t i, auto count) {
    return simd::exp(simd::load_partial(x + i, count, kMinusInfinity<T>) - shift);
  });
  const T log_total = total == 0 ? T(0) : std::log(total);
  for_each_vector<T>(n, [=](std::int64_t i, auto count) {
    simd::store_partial(y + i, (simd::load_partial(x + i, count) - shift) - log_total, count);
  });
}

template <class T>
void softmax_backward_row(const T* dy, const T* y, T* dx, std::int64_t n, bool add) {
  const T dot = row_sum<T>(n, [=](std::int64_t i, auto count) {
    return simd::load_partial(dy + i, count) * simd::load_partial(y + i, count);
  });
  for_each_vector<T>(n, [=](std::int64_t i, auto count) {
    const auto v = simd::load_partial(y + i, count) * (simd::load_partial(dy + i, count) - dot);
    write_vector(dx + i, v, count, add);
  });
}

template <class T>
void log_softmax_backward_row(const T* dy, const T* y, T* dx, std::int64_t n, bool add) {
  // Of the rows without NaN only one of -inf alone has no finite entry; it passes nothing.
  if (std::all_of(y, y + n, [](T v) { return v == kMinusInfinity<T>; })) {
    if (!add) std::fill(dx, dx + n, T(0));
    return;
  }
  const T total = row_sum<T>(n, [=](std::int64_t i, auto count) { return simd::load_partial(dy + i, count); });
  for_each_vector<T>(n, [=](std::int64_t i, auto count) {
    const auto v = simd::load_partial(dy + i, count) - simd::exp(simd::load_partial(y + i, count)) * total;
    write_vector(dx + i, v, count, add);
  });
}

}  // namespace

void softmax_forward(const Tensor& x, Tensor& y) {
  visit_float("softmax", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* px = x.data<T>();
    T* py = y.mutable_data<T>();
    const std::int64_t n = x.shape().back();
    parallel_rows(x.shape().rows(), n, [=](std::int64_t row) { softmax_row(px + row * n, py + row * n, n); });
  });
}

void softmax_backward(const Tensor& dy, const Tensor& y, Grad dx) {
  if (!dx) return;
  const bool add = dx.claim();
  visit_float("softmax_backward", y.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pdy = dy.data<T>(), *py = y.data<T>();
    T* pdx = dx.data<T>();
    const std::int64_t n = y.shape().back();
    parallel_rows(y.shape().rows(), n,
                  [=](std::int64_t row) { softmax_backward_row(pdy + row * n, py + row * n, pdx + row * n, n, add); });
  });
}

void log_softmax_forward(const Tensor& x, Tensor& y) {
  visit_float("log_softmax", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* px = x.data<T>();
    T* py = y.mutable_data<T>();
    const std::int64_t n = x.shape().back();
    parallel_rows(x.shape().rows(), n, [=](std::int64_t row) { log_softmax_row(px + row * n, py + row * n, n); });
  });
}

void log_softmax_backward(const Tensor& dy, const Tensor& y, Grad dx) {
  if (!dx) return;
  const bool add = dx.claim();
  visit_float("log_softmax_backward", y.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pdy = dy.data<T>(), *py = y.data<T>();
    T* pdx = dx.data<T>();
    const std::int64_t n = y.shape().back();
    parallel_rows(y.shape().rows(), n, [=](std::int64_t row) {
      log_softmax_backward_row(pdy + row * n, py + row * n, pdx + row * n, n, add);
    });
  });
}

}  // namespace tapestry::cpu
