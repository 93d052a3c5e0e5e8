// Two passes over the row: the mean, then the squares of what is left. Between them the mean is corrected by the mean
// of x - mean, so that equal elements have exactly the variance 0. Saved: x and the mean, for the root also y.
#include "core/kernels/variance.h"

#include <cmath>

#include "core/kernels/pointwise_map.h"
#include "core/kernels/slices.h"

namespace tapestry::cpu {

void variance_forward(const Tensor& x, const Shape& kept, double correction, bool root, Tensor& y, Tensor& mean) {
  visit_float("var", x.dtype(), [&]<class T>(TypeTag<T>) {
    T *py = y.mutable_data<T>(), *pmean = mean.mutable_data<T>();
    const Slices slices(x.shape(), kept);
    const T count = static_cast<T>(slices.length()), divisor = static_cast<T>(slices.length() - correction);
    for_each_slice(slices, x.data<T>(), [=, n = slices.length()](std::int64_t result, const T* row) {
      const auto above = [row](T center) {
        return [=](std::int64_t i, auto lanes) {
          return simd::load_partial(row + i, lanes, center) - simd::splat(center);
        };
      };
      const T rough = pairwise_sum<T>(0, n, above(T(0))) / count;
      const T center = rough + pairwise_sum<T>(0, n, above(rough)) / count;
      const T variance = pairwise_sum<T>(0, n,
                                         [distance = above(center)](std::int64_t i, auto lanes) {
                                           const simd::Vec<T> d = distance(i, lanes);
                                           return d * d;
                                         }) /
                         divisor;
      pmean[result] = center;
      py[result] = root ? std::sqrt(variance) : variance;
    });
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
