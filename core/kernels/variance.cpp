// Two passes: the mean, then the deviations from it, d, and their squares. The average of d is what the rounded mean
// lacks: sum(d^2) - sum(d) avg(d) is exact about the true mean (Chan, Golub & LeVeque 1983), and exactly 0 for equal
// elements. Saved: x and the mean, for the root also y.
#include "core/kernels/variance.h"

#include <cmath>

#include "core/kernels/fold.h"
#include "core/kernels/pointwise_map.h"

namespace tapestry::cpu {

void variance_forward(const Tensor& x, const Shape& kept, double correction, bool root, Tensor& y, Tensor& mean) {
  visit_float("var", x.dtype(), [&]<class T>(TypeTag<T>) {
    T *py = y.mutable_data<T>(), *pmean = mean.mutable_data<T>();
    using V = simd::Vec<T>;
    if (kept.numel() == 0) return;
    const double n = static_cast<double>(x.numel() / kept.numel());
    const T count = static_cast<T>(n), divisor = static_cast<T>(n - correction);
    const auto elements = sums<T>([](V v, V) { return Vectors<T, 1>{v}; });
    const auto deviations = sums<T>([](V v, V center) {
      const V d = v - center;
      return Vectors<T, 2>{d, d * d};
    });
    fold(x.data<T>(), x.shape(), kept,
         fold_stage(elements, nullptr, [=](std::int64_t i, auto total) { pmean[i] = total[0] / count; }),
         fold_stage(deviations, pmean, [=](std::int64_t i, auto total) {
           const T rest = total[0] / count;
           const T variance = std::max(total[1] - total[0] * rest, T(0)) / divisor;
           pmean[i] += rest;
           py[i] = root ? std::sqrt(variance) : variance;
         }));
  });
}

void variance_backward(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& root, const Shape& kept,
                       double correction, Grad dx) {
  if (!dx) return;
  visit_float("var", x.dtype(), [&]<class T>(TypeTag<T>) {
    using V = simd::Vec<T>;
    const bool add = dx.claim();
    const Shape& shape = x.shape();
    if (shape.numel() == 0) return;
    const T divisor = static_cast<T>(shape.numel() / kept.numel() - correction);
    const Strides each = broadcast_strides(kept, shape);
    T* out = dx.data<T>();
    const MapInput<T> upstream{dy.data<T>(), each}, center{mean.data<T>(), each}, values = map_input<T>(x, shape);
    if (root) {
      map<T>(shape, out, add, {upstream, values, center, MapInput<T>{root.data<T>(), each}},
             [=](V g, V v, V m, V r) { return simd::select(r == T(0), T(0), g * ((v - m) / r) / divisor); });
    } else {
      map<T>(shape, out, add, {upstream, values, center},
             [=](V g, V v, V m) { return g * (T(2) * (v - m) / divisor); });
    }
  });
}

}  // namespace tapestry::cpu
