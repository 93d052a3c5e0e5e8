// Each row is scaled by a power of two near its largest entry, which costs no accuracy, so that no square overflows and
// none that counts underflows. Saved: x and y.
#include "core/kernels/norm.h"

#include <cmath>

#include "core/kernels/pointwise_map.h"
#include "core/kernels/slices.h"

namespace tapestry::cpu {

namespace {

template <class T>
T norm_of_row(const T* x, std::int64_t n) {
  const T largest =
      row_max<T>(n, [x](std::int64_t i, auto count) { return simd::abs(simd::load_partial(x + i, count)); });
  if (n == 0 || largest == 0) return 0;
  if (!std::isfinite(largest)) return largest;
  // The scale and its inverse must be normal numbers, also for subnormal entries.
  using Limits = std::numeric_limits<T>;
  const int exponent = std::clamp(std::ilogb(largest), Limits::min_exponent, Limits::max_exponent - 2);
  const T down = std::ldexp(T(1), -exponent), up = std::ldexp(T(1), exponent);
  const T squares = pairwise_sum<T>(0, n, [=](std::int64_t i, auto count) {
    const simd::Vec<T> scaled = simd::load_partial(x + i, count) * down;
    return scaled * scaled;
  });
  return std::sqrt(squares) * up;
}

}  // namespace

void norm_forward(const Tensor& x, const Shape& kept, Tensor& y) {
  visit_float("norm", x.dtype(), [&]<class T>(TypeTag<T>) {
    T* py = y.mutable_data<T>();
    const Slices slices(x.shape(), kept);
    for_each_slice(slices, x.data<T>(),
                   [=, n = slices.length()](std::int64_t result, const T* row) { py[result] = norm_of_row(row, n); });
  });
}

void norm_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const Shape& kept, Grad dx) {
  if (!dx) return;
  visit_float("norm", x.dtype(), [&]<class T>(TypeTag<T>) {
    using V = simd::Vec<T>;
    const bool add = dx.claim();
    const Shape& shape = x.shape();
    const Strides each = broadcast_strides(kept, shape);
    map<T>(shape, dx.data<T>(), add,
           {MapInput<T>{dy.data<T>(), each}, map_input<T>(x, shape), MapInput<T>{y.data<T>(), each}},
           [](V g, V v, V r) { return simd::select(r == T(0), T(0), g * (v / r)); });
  });
}

}  // namespace tapestry::cpu
