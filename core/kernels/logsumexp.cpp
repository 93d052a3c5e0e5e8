// y = max + log(sum(exp(x - max))). Saved: x, the maximum and 1 / sum rather than y, since x - y has lost the digits
// of the sum where the maximum is large.
#include "core/kernels/logsumexp.h"

#include <cmath>

#include "core/kernels/pointwise_map.h"
#include "core/kernels/slices.h"

namespace tapestry::cpu {

void logsumexp_forward(const Tensor& x, const Shape& kept, Tensor& y, Tensor& shift, Tensor& factor) {
  visit_float("logsumexp", x.dtype(), [&]<class T>(TypeTag<T>) {
    T *py = y.mutable_data<T>(), *pshift = shift.mutable_data<T>(), *pfactor = factor.mutable_data<T>();
    const Slices slices(x.shape(), kept);
    for_each_slice(slices, x.data<T>(), [=, n = slices.length()](std::int64_t result, const T* row) {
      const auto load = [row](std::int64_t i, auto count) {
        return simd::load_partial(row + i, count, kMinusInfinity<T>);
      };
      const T max = row_max<T>(n, load);
      if (std::isfinite(max)) {
        const T sum =
            pairwise_sum<T>(0, n, [=](std::int64_t i, auto count) { return simd::exp(load(i, count) - max); });
        py[result] = max + std::log(sum);
        pshift[result] = max;
        pfactor[result] = 1 / sum;
      } else {
        // With a shift of 0 and a factor of 0, a slice of -inf gets 0 and not the exp of inf - inf.
        const bool nothing = max == kMinusInfinity<T>;
        py[result] = max;
        pshift[result] = nothing ? T(0) : max;
        pfactor[result] = nothing ? T(0) : T(1);
      }
    });
  });
}

void logsumexp_backward(const Tensor& dy, const Tensor& x, const Tensor& shift, const Tensor& factor, const Shape& kept,
                        Grad dx) {
  if (!dx) return;
  visit_float("logsumexp", x.dtype(), [&]<class T>(TypeTag<T>) {
    using V = simd::Vec<T>;
    const bool add = dx.claim();
    const Shape& shape = x.shape();
    const Strides each = broadcast_strides(kept, shape);
    map<T>(shape, dx.data<T>(), add,
           {MapInput<T>{dy.data<T>(), each}, map_input<T>(x, shape), MapInput<T>{shift.data<T>(), each},
            MapInput<T>{factor.data<T>(), each}},
           [](V g, V v, V s, V f) { return g * (simd::exp(v - s) * f); });
  });
}

}  // namespace tapestry::cpu
