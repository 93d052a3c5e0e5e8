// One row at a time: the maximum, the sum of exp(x - max), then the outputs; the row stays in cache between passes.
// Saved: the output. A row of -inf only is shifted by 0 instead of its maximum, so that its sum is 0 and not NaN.
// With a mask the row is first written as masked scores where its result will stand, and backward reads a copy of dy
// with 0 where hidden; the arithmetic is the same.
#include "core/kernels/softmax.h"

#include <cmath>
#include <vector>

#include "core/kernels/reduce.h"
#include "core/kernels/rows.h"
#include "core/kernels/strided_walk.h"

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

// The mask's values along one row of x after another.
template <class T>
class RowMask {
 public:
  RowMask(const Tensor& mask, const Shape& shape) : shape_(shape) {
    if (!mask) return;
    strides_ = broadcast_strides(mask.shape(), shape);
    if (mask.dtype() == DType::u8)
      keep_ = mask.data<std::uint8_t>();
    else
      added_ = mask.data<T>();
  }
  explicit operator bool() const { return keep_ || added_; }

  // The scores of a row: x + mask, -inf where hidden.
  void scores(std::int64_t row, const T* x, T* y, std::int64_t n) const {
    const std::int64_t at = offset(row), step = strides_[shape_.rank() - 1];
    for (std::int64_t i = 0; i < n; ++i) {
      const T added = keep_ ? (keep_[at + i * step] ? T(0) : kMinusInfinity<T>) : added_[at + i * step];
      y[i] = added == kMinusInfinity<T> ? added : x[i] + added;
    }
  }
  // dy, 0 where hidden.
  void visible(std::int64_t row, const T* dy, T* out, std::int64_t n) const {
    const std::int64_t at = offset(row), step = strides_[shape_.rank() - 1];
    for (std::int64_t i = 0; i < n; ++i)
      out[i] = (keep_ ? keep_[at + i * step] == 0 : added_[at + i * step] == kMinusInfinity<T>) ? T(0) : dy[i];
  }

 private:
  std::int64_t offset(std::int64_t row) const {
    std::int64_t offset = 0;
    for (int axis = shape_.rank() - 2; axis >= 0; --axis) {
      offset += row % shape_[axis] * strides_[axis];
      row /= shape_[axis];
    }
    return offset;
  }

  Shape shape_;
  Strides strides_{};
  const std::uint8_t* keep_ = nullptr;
  const T* added_ = nullptr;
};

// row(scores, y, n) for every row.
template <class Row>
void forward_rows(std::string_view op, const Tensor& x, const Tensor& mask, Tensor& y, Row row) {
  visit_float(op, x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* px = x.data<T>();
    T* py = y.mutable_data<T>();
    const std::int64_t n = x.shape().back();
    const RowMask<T> hidden(mask, x.shape());
    parallel_rows(x.shape().rows(), n, [=, &hidden](std::int64_t i) {
      if (hidden) hidden.scores(i, px + i * n, py + i * n, n);
      row(hidden ? py + i * n : px + i * n, py + i * n, n);
    });
  });
}

// row(dy, y, dx, n, add) for every row.
template <class T, class Row>
void gradient_rows(const Tensor& dy, const Tensor& y, const Tensor& mask, T* dx, bool add, Row row) {
  const T *pdy = dy.data<T>(), *py = y.data<T>();
  const std::int64_t n = y.shape().back();
  const RowMask<T> hidden(mask, y.shape());
  parallel_rows(y.shape().rows(), n, [=, &hidden](std::int64_t i) {
    const T* dy_row = pdy + i * n;
    if (hidden) {
      static thread_local std::vector<T> visible;
      if (visible.size() < static_cast<std::size_t>(n)) visible.resize(static_cast<std::size_t>(n));
      hidden.visible(i, dy_row, visible.data(), n);
      dy_row = visible.data();
    }
    row(dy_row, py + i * n, dx + i * n, n, add);
  });
}

template <class Row>
void backward_rows(std::string_view op, const Tensor& dy, const Tensor& y, const Tensor& mask, const Grad& dx,
                   const Grad& dmask, Row row) {
  visit_float(op, y.dtype(), [&]<class T>(TypeTag<T>) {
    if (dx) {
      const bool add = dx.claim();
      gradient_rows<T>(dy, y, mask, dx.data<T>(), add, row);
    }
    if (dmask) {
      const bool add = dmask.claim();
      Tensor full = workspace(y.shape(), y.dtype());
      gradient_rows<T>(dy, y, mask, full.mutable_data<T>(), false, row);
      sum_into(full.data<T>(), y.shape(), dmask.shape(), 1.0, dmask.data<T>(), add);
    }
  });
}

}  // namespace

void softmax_forward(const Tensor& x, const Tensor& mask, Tensor& y) {
  forward_rows("softmax", x, mask, y, [](auto... args) { softmax_row(args...); });
}
void softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& mask, Grad dx, Grad dmask) {
  backward_rows("softmax_backward", dy, y, mask, dx, dmask, [](auto... args) { softmax_backward_row(args...); });
}

void log_softmax_forward(const Tensor& x, const Tensor& mask, Tensor& y) {
  forward_rows("log_softmax", x, mask, y, [](auto... args) { log_softmax_row(args...); });
}
void log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& mask, Grad dx, Grad dmask) {
  backward_rows("log_softmax_backward", dy, y, mask, dx, dmask,
                [](auto... args) { log_softmax_backward_row(args...); });
}

}  // namespace tapestry::cpu
