// y = max + log(sum(exp(x - max))). Saved: x, the maximum and 1 / sum rather than y, since x - y has lost the digits
// of the sum where the maximum is large.
#include "core/kernels/logsumexp.h"

#include <cmath>

#include "core/kernels/fold.h"
#include "core/kernels/pointwise_map.h"

namespace tapestry::cpu {

void logsumexp_forward(const Tensor& x, const Shape& kept, Tensor& y, Tensor& shift, Tensor& factor) {
  visit_float("logsumexp", x.dtype(), [&]<class T>(TypeTag<T>) {
    using V = simd::Vec<T>;
    T *py = y.mutable_data<T>(), *pshift = shift.mutable_data<T>(), *pfactor = factor.mutable_data<T>();
    const auto max = largest<T>([](V v) { return v; });
    const auto exps = sums<T>([](V v, V s) { return Vectors<T, 1>{simd::exp(v - s)}; });
    fold(x.data<T>(), x.shape(), kept,
         fold_stage(max, nullptr,
                    [=](std::int64_t i, auto total) {
                      // With a shift of 0 and a factor of 0, a slice of -inf gets 0 and not the exp of inf - inf.
                      pshift[i] = total[0] == kMinusInfinity<T> ? T(0) : total[0];
                    }),
         fold_stage(exps, pshift, [=](std::int64_t i, auto total) {
           const bool finite = std::isfinite(pshift[i]);
           py[i] = finite ? pshift[i] + std::log(total[0]) : pshift[i];
           pfactor[i] = !finite ? T(1) : total[0] > 0 ? 1 / total[0] : T(0);
         }));
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
