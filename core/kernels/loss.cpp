// CPU side of the losses. An elementwise loss is its formula handed to map(); a sum or mean goes through a scratch
// tensor and sum_into(), so its order depends on the shape only.
#include "core/kernels/loss.h"

#include "core/kernels/loss_formulas.h"
#include "core/kernels/pointwise_map.h"
#include "core/kernels/reduce.h"
#include "core/kernels/rows.h"

namespace tapestry::cpu {
namespace {

void check_shapes(const char* op, const Tensor& x, const Tensor& target, const Tensor& y) {
  TAP_CHECK(x.shape() == target.shape(), op, ": x ", x.shape(), " and target ", target.shape(),
            " must have one shape; reshape one of them");
  TAP_CHECK(y.numel() == 1 || y.shape() == x.shape(), op, ": the result must be a scalar or ", x.shape(), ", not ",
            y.shape());
}

template <class Formula>
void loss_forward(const char* op, const Tensor& x, const Tensor& target, const Tensor& parameter, double scale,
                  Tensor& y) {
  check_shapes(op, x, target, y);
  const Shape& shape = x.shape();
  visit_float(op, x.dtype(), [&]<class T>(TypeTag<T>) {
    // x stands in for a parameter that the formula does not read.
    const auto map_to = [&](T* out) {
      map<T>(shape, out, false,
             {map_input<T>(x, shape), map_input<T>(target, shape), map_input<T>(parameter ? parameter : x, shape)},
             [](simd::Vec<T> u, simd::Vec<T> t, simd::Vec<T> p) { return Formula::f(u, t, p); });
    };
    if (y.numel() == shape.numel()) return map_to(y.mutable_data<T>());
    Tensor elements = workspace(shape, x.dtype());
    map_to(elements.mutable_data<T>());
    sum_into(elements.data<T>(), shape, Shape{}, scale, y.mutable_data<T>(), false);
  });
}

template <class Formula>
void loss_backward(const char* op, const Tensor& dy, const Tensor& x, const Tensor& target, const Tensor& parameter,
                   double scale, Grad dx, Grad dtarget) {
  check_shapes(op, x, target, dy);
  const Shape& shape = x.shape();
  visit_float(op, x.dtype(), [&]<class T>(TypeTag<T>) {
    const auto write = [&](Grad grad, auto derivative) {
      if (!grad) return;
      const bool add = grad.claim();
      map<T>(shape, grad.data<T>(), add,
             {map_input<T>(dy, shape), map_input<T>(x, shape), map_input<T>(target, shape),
              map_input<T>(parameter ? parameter : x, shape)},
             [=, factor = T(scale)](simd::Vec<T> g, simd::Vec<T> u, simd::Vec<T> t, simd::Vec<T> p) {
               return g * factor * derivative(u, t, p);
             });
    };
    write(dx, [](auto... v) { return Formula::dx(v...); });
    write(dtarget, [](auto... v) { return Formula::dt(v...); });
  });
}

}  // namespace

#define TAP_DEFINE_LOSS(name, Formula)                                                                                 \
  void name##_forward(const Tensor& x, const Tensor& target, const Tensor& parameter, double scale, Tensor& y) {       \
    loss_forward<formula::Formula>(#name, x, target, parameter, scale, y);                                             \
  }                                                                                                                    \
  void name##_backward(const Tensor& dy, const Tensor& x, const Tensor& target, const Tensor& parameter, double scale, \
                       Grad dx, Grad dtarget) {                                                                        \
    loss_backward<formula::Formula>(#name, dy, x, target, parameter, scale, dx, dtarget);                              \
  }
TAP_LOSSES(TAP_DEFINE_LOSS)
#undef TAP_DEFINE_LOSS

}  // namespace tapestry::cpu
