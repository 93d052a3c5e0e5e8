// A row of y is computed tap by tap, in row-major order of the window: the inner loop runs over the places along the
// row, whose elements lie a stride apart. Forward is spread over rows of y, backward over planes, where overlapping
// windows add up in order of the windows. Saved: the positions of the maxima; for the average nothing.
#include "core/kernels/pool.h"

#include <cmath>

#include "core/kernels/rows.h"

namespace tapestry {
namespace {

WindowAxis pool_axis(const char* op, std::int64_t size, std::int64_t stride, std::int64_t padding,
                     std::int64_t dilation) {
  TAP_CHECK(size >= 1, op, ": the window size must be at least 1, not ", size);
  TAP_CHECK(stride >= 0, op, ": the stride must be at least 1, or 0 for the window size, not ", stride);
  TAP_CHECK(dilation >= 1, op, ": the dilation must be at least 1, not ", dilation);
  TAP_CHECK(padding >= 0 && padding <= size / 2, op, ": the padding must be 0 to half the window size ", size, ", not ",
            padding, "; pad makes x larger");
  return {size, stride == 0 ? size : stride, padding, dilation};
}

Window make_window(const char* op, std::int64_t size, std::int64_t stride, std::int64_t padding,
                   std::int64_t dilation) {
  return {{}, pool_axis(op, size, stride, padding, dilation)};
}
Window make_window(const char* op, HeightWidth size, HeightWidth stride, HeightWidth padding, HeightWidth dilation) {
  return {pool_axis(op, size.h, stride.h, padding.h, dilation.h),
          pool_axis(op, size.w, stride.w, padding.w, dilation.w)};
}

}  // namespace

Window pool_window(const char* op, const MaxPool1dOptions& o) {
  return make_window(op, o.size, o.stride, o.padding, o.dilation);
}
Window pool_window(const char* op, const MaxPool2dOptions& o) {
  return make_window(op, o.size, o.stride, o.padding, o.dilation);
}
Window pool_window(const char* op, const AvgPool1dOptions& o) {
  return make_window(op, o.size, o.stride, o.padding, 1);
}
Window pool_window(const char* op, const AvgPool2dOptions& o) {
  return make_window(op, o.size, o.stride, o.padding, 1);
}

namespace cpu {
namespace {

// Calls f(place, element) for the places along an axis whose tap lies inside it.
template <class F>
void for_each_place(const WindowAxis& axis, std::int64_t extent, std::int64_t tap, F f) {
  const std::int64_t start = axis.element(0, tap);
  const std::int64_t first = start >= 0 ? 0 : (-start + axis.stride - 1) / axis.stride;
  const std::int64_t end =
      start >= extent ? 0 : std::min((extent - 1 - start) / axis.stride + 1, axis.positions(extent));
  const auto run = [=](auto stride) {
    for (std::int64_t place = first; place < end; ++place) f(place, start + place * stride);
  };
  if (axis.stride == 1)  // usual strides as constants, for vectors
    run(std::integral_constant<std::int64_t, 1>{});
  else if (axis.stride == 2)
    run(std::integral_constant<std::int64_t, 2>{});
  else
    run(axis.stride);
}

// Calls f(place, element of the plane) for everything under the windows of one row of y.
template <class F>
void for_each_tap(const PoolLayout& l, std::int64_t row, F f) {
  for (std::int64_t i = 0; i < l.window.h.size; ++i) {
    const std::int64_t h = l.window.h.element(row, i);
    if (h < 0 || h >= l.height) continue;
    for (std::int64_t j = 0; j < l.window.w.size; ++j)
      for_each_place(l.window.w, l.width, j,
                     [f, line = h * l.width](std::int64_t place, std::int64_t w) { f(place, line + w); });
  }
}

std::int64_t taps(const PoolLayout& l) { return l.window.h.size * l.window.w.size; }

// f(plane) for every plane of x, one thread each.
template <class F>
void for_each_plane(const PoolLayout& l, F f) {
  parallel_rows(l.planes, l.height * l.width + l.rows() * l.columns() * taps(l), f);
}

// What the sums of one row of y are divided by.
template <class T>
class Divisors {
 public:
  Divisors(const PoolLayout& l, bool count_include_pad, std::int64_t row)
      : axis_(l.window.w),
        extent_(l.width),
        padding_(count_include_pad),
        height_(padding_ ? l.window.h.size : inside(l.window.h, l.height, row)) {}
  T operator()(std::int64_t place) const {
    return static_cast<T>(height_ * (padding_ ? axis_.size : inside(axis_, extent_, place)));
  }

 private:
  static std::int64_t inside(const WindowAxis& axis, std::int64_t extent, std::int64_t place) {
    const std::int64_t first = axis.element(place, 0);
    return std::min(first + axis.size, extent) - std::max<std::int64_t>(first, 0);
  }
  WindowAxis axis_;
  std::int64_t extent_;
  bool padding_;
  std::int64_t height_;
};

}  // namespace

void max_pool_forward(const Tensor& x, const PoolLayout& l, Tensor& y, Tensor& position) {
  visit_float("max_pool", x.dtype(), [&]<class T>(TypeTag<T>) {
    const std::int64_t rows = l.rows(), columns = l.columns();
    const T* px = x.data<T>();
    T* py = y.mutable_data<T>();
    std::int32_t* positions = position.mutable_data<std::int32_t>();
    parallel_rows(l.planes * rows, columns * taps(l), [=, &l](std::int64_t at) {
      const T* plane = px + at / rows * l.height * l.width;
      T* best = py + at * columns;
      std::int32_t* where = positions + at * columns;
      std::fill_n(best, columns, kMinusInfinity<T>);
      std::fill_n(where, columns, -1);
      for_each_tap(l, at % rows, [=](std::int64_t place, std::int64_t element) {
        const T value = plane[element], so_far = best[place];
        const bool take = (where[place] < 0) | (!(value <= so_far) & (so_far == so_far));
        best[place] = take ? value : so_far;
        where[place] = take ? static_cast<std::int32_t>(element) : where[place];
      });
    });
  });
}

void max_pool_backward(const Tensor& dy, const Tensor& y, const Tensor& position, const PoolLayout& l, Grad dx) {
  if (!dx) return;
  visit_float("max_pool", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim();
    const std::int64_t area = l.height * l.width, places = l.rows() * l.columns();
    T* pdx = dx.data<T>();
    const T *pdy = dy.data<T>(), *py = y.data<T>();
    const std::int32_t* positions = position.data<std::int32_t>();
    for_each_plane(l, [=](std::int64_t at) {
      T* plane = pdx + at * area;
      if (!add) std::fill_n(plane, area, T(0));
      for (std::int64_t i = at * places; i < (at + 1) * places; ++i)
        plane[positions[i]] += std::isnan(py[i]) ? py[i] : pdy[i];
    });
  });
}

void avg_pool_forward(const Tensor& x, const PoolLayout& l, bool count_include_pad, Tensor& y) {
  visit_float("avg_pool", x.dtype(), [&]<class T>(TypeTag<T>) {
    const std::int64_t rows = l.rows(), columns = l.columns();
    const T* px = x.data<T>();
    T* py = y.mutable_data<T>();
    parallel_rows(l.planes * rows, columns * taps(l), [=, &l](std::int64_t at) {
      const T* plane = px + at / rows * l.height * l.width;
      T* sum = py + at * columns;
      std::fill_n(sum, columns, T(0));
      for_each_tap(l, at % rows, [=](std::int64_t place, std::int64_t element) { sum[place] += plane[element]; });
      const Divisors<T> divisor(l, count_include_pad, at % rows);
      for (std::int64_t place = 0; place < columns; ++place) sum[place] /= divisor(place);
    });
  });
}

void avg_pool_backward(const Tensor& dy, const PoolLayout& l, bool count_include_pad, Grad dx) {
  if (!dx) return;
  visit_float("avg_pool", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim();
    const std::int64_t area = l.height * l.width, rows = l.rows(), columns = l.columns();
    T* pdx = dx.data<T>();
    const T* pdy = dy.data<T>();
    for_each_plane(l, [=, &l](std::int64_t at) {
      T* plane = pdx + at * area;
      if (!add) std::fill_n(plane, area, T(0));
      Tensor scratch = workspace({columns}, dtype_of<T>);
      T* share = scratch.mutable_data<T>();
      for (std::int64_t row = 0; row < rows; ++row) {
        const Divisors<T> divisor(l, count_include_pad, row);
        const T* from = pdy + (at * rows + row) * columns;
        for (std::int64_t place = 0; place < columns; ++place) share[place] = from[place] / divisor(place);
        for_each_tap(l, row, [=](std::int64_t place, std::int64_t element) { plane[element] += share[place]; });
      }
    });
  });
}

}  // namespace cpu
}  // namespace tapestry
