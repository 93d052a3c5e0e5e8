// Each slice is scaled by a power of two near its largest entry, which costs no accuracy, so that no square overflows
// and none that counts underflows. Saved: x and y.
#include "core/kernels/norm.h"

#include <cmath>

#include "core/kernels/fold.h"
#include "core/kernels/pointwise_map.h"

namespace tapestry::cpu {

void norm_forward(const Tensor& x, const Shape& kept, Tensor& y) {
  visit_float("norm", x.dtype(), [&]<class T>(TypeTag<T>) {
    using V = simd::Vec<T>;
    using Limits = std::numeric_limits<T>;
    Tensor scale = workspace(kept, x.dtype());
    T *py = y.mutable_data<T>(), *down = scale.mutable_data<T>();
    const auto size = largest<T>([](V v) { return simd::abs(v); });
    const auto squares = sums<T>([](V v, V factor) {
      const V scaled = v * factor;
      return Vectors<T, 1>{scaled * scaled};
    });
    fold(x.data<T>(), x.shape(), kept,
         fold_stage(size, nullptr,
                    [=](std::int64_t i, auto max) {
                      py[i] = std::max(max[0], T(0));
                      // The scale and its inverse must be normal numbers, also for subnormal entries.
                      const bool scaled = max[0] > 0 && std::isfinite(max[0]);
                      const int exponent = scaled ? std::ilogb(max[0]) : 0;
                      down[i] = std::ldexp(T(1), -std::clamp(exponent, Limits::min_exponent, Limits::max_exponent - 2));
                    }),
         fold_stage(squares, down, [=](std::int64_t i, auto sum) {
           if (std::isfinite(py[i])) py[i] = std::sqrt(sum[0]) * (1 / down[i]);
         }));
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
