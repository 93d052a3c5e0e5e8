// One row at a time: the maximum, the sum of exp(x - max), then the outputs; the row stays in cache between passes.
// Saved: the output. A row of -inf only is shifted by 0 instead of its maximum, so that its sum is 0 and not NaN.
#include "core/kernels/softmax.h"

#include <cmath>

#include "core/kernels/rows.h"

namespace tapestry::cpu {

namespace {

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
  const T total = row_exp_sum(x, n, shift);
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

// row(x, y, n) for every row.
template <class Row>
void forward_rows(std::string_view op, const Tensor& x, Tensor& y, Row row) {
  visit_float(op, x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* px = x.data<T>();
    T* py = y.mutable_data<T>();
    const std::int64_t n = x.shape().back();
    parallel_rows(x.shape().rows(), n, [=](std::int64_t i) { row(px + i * n, py + i * n, n); });
  });
}

// row(dy, y, dx, n, add) for every row.
template <class Row>
void backward_rows(std::string_view op, const Tensor& dy, const Tensor& y, const Grad& dx, Row row) {
  if (!dx) return;
  const bool add = dx.claim();
  visit_float(op, y.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pdy = dy.data<T>(), *py = y.data<T>();
    T* pdx = dx.data<T>();
    const std::int64_t n = y.shape().back();
    parallel_rows(y.shape().rows(), n, [=](std::int64_t i) { row(pdy + i * n, py + i * n, pdx + i * n, n, add); });
  });
}

}  // namespace

void softmax_forward(const Tensor& x, Tensor& y) {
  forward_rows("softmax", x, y, [](auto... args) { softmax_row(args...); });
}
void softmax_backward(const Tensor& dy, const Tensor& y, Grad dx) {
  backward_rows("softmax_backward", dy, y, dx, [](auto... args) { softmax_backward_row(args...); });
}

void log_softmax_forward(const Tensor& x, Tensor& y) {
  forward_rows("log_softmax", x, y, [](auto... args) { log_softmax_row(args...); });
}
void log_softmax_backward(const Tensor& dy, const Tensor& y, Grad dx) {
  backward_rows("log_softmax_backward", dy, y, dx, [](auto... args) { log_softmax_backward_row(args...); });
}

}  // namespace tapestry::cpu
