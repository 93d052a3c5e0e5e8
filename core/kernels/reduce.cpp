// Sums over any set of axes, and their reverse; nothing is saved.
#include "core/kernels/reduce.h"

#include "core/kernels/fold.h"
#include "core/kernels/pointwise_map.h"

namespace tapestry::cpu {

template <class T>
void sum_into(const T* x, const Shape& shape, const Shape& kept, double scale, T* target, bool add) {
  const auto elements = sums<T>([](simd::Vec<T> v, simd::Vec<T>) { return Vectors<T, 1>{v}; });
  fold(x, shape, kept, fold_stage(elements, nullptr, [=, factor = static_cast<T>(scale)](std::int64_t i, auto total) {
         target[i] = add ? target[i] + factor * total[0] : factor * total[0];
       }));
}
template void sum_into(const float*, const Shape&, const Shape&, double, float*, bool);
template void sum_into(const double*, const Shape&, const Shape&, double, double*, bool);

void sum_forward(const Tensor& x, const Shape& kept, double scale, Tensor& y) {
  TAP_CHECK(y.numel() == kept.numel(), "sum: y ", y.shape(), " must have as many elements as ", kept);
  visit_float("sum", x.dtype(),
              [&]<class T>(TypeTag<T>) { sum_into(x.data<T>(), x.shape(), kept, scale, y.mutable_data<T>(), false); });
}

void sum_backward(const Tensor& dy, const Shape& kept, double scale, Grad dx) {
  if (!dx) return;
  visit_float("sum", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim();
    map<T>(dx.shape(), dx.data<T>(), add, {MapInput<T>{dy.data<T>(), broadcast_strides(kept, dx.shape())}},
           [factor = T(scale)](simd::Vec<T> g) { return g * factor; });
  });
}

}  // namespace tapestry::cpu
