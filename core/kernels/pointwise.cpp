// CPU side of the pointwise functions: every one is its formula handed to map(). Nothing is kept beside what the
// formula says. A gradient over broadcast axes is made in full in a scratch tensor and then summed (see reduce.h),
// except where it is a plain multiple of dy, which is summed directly.
#include "core/kernels/pointwise.h"

#include "core/kernels/pointwise_binary_formulas.h"
#include "core/kernels/pointwise_formulas.h"
#include "core/kernels/pointwise_map.h"
#include "core/kernels/reduce.h"

namespace tapestry::cpu {
namespace {

template <class Formula>
void unary_forward(const char* op, const Formula& formula, const Tensor& x, Tensor& y) {
  TAP_CHECK(x.shape() == y.shape(), op, ": x ", x.shape(), " and y ", y.shape(), " must have one shape");
  visit_float(op, accumulate_dtype(x.dtype()), [&]<class T>(TypeTag<T>) {
    map<T>(x.shape(), y, false, {map_input<T>(x, x.shape())}, [formula](simd::Vec<T> v) { return formula.f(v); });
  });
}

template <class Formula, class A>
A gradient(const Formula& formula, A dy, A saved) {
  if constexpr (requires { formula.dx(dy, saved); })
    return formula.dx(dy, saved);
  else
    return dy * formula.df(saved);
}

template <class Formula>
void unary_backward(const char* op, const Formula& formula, const Tensor& dy, const Tensor& saved, Grad dx) {
  if (!dx) return;
  const Shape& shape = dx.shape();
  TAP_CHECK(dy.shape() == shape, op, ": dy ", dy.shape(), " and dx ", shape, " must have one shape");
  visit_float(op, accumulate_dtype(dy.dtype()), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim_over(dy);
    if constexpr (Formula::kSaves == Saves::nothing) {
      map<T>(shape, dx.tensor(), add, {map_input<T>(dy, shape)},
             [formula](simd::Vec<T> g) { return gradient(formula, g, g); });
    } else {
      TAP_CHECK(saved.shape() == shape, op, ": the saved value ", saved.shape(), " must have the shape ", shape);
      map<T>(shape, dx.tensor(), add, {map_input<T>(dy, shape), map_input<T>(saved, shape)},
             [formula](simd::Vec<T> g, simd::Vec<T> v) { return gradient(formula, g, v); });
    }
  });
}

template <class Formula>
void binary_forward(const char* op, const Tensor& a, const Tensor& b, Tensor& y) {
  const Shape& shape = y.shape();
  TAP_CHECK(broadcast(op, a.shape(), b.shape()) == shape, op, ": y must have the broadcast shape of a ", a.shape(),
            " and b ", b.shape(), ", not ", shape);
  visit_float(op, accumulate_dtype(y.dtype()), [&]<class T>(TypeTag<T>) {
    map<T>(shape, y, false, {map_input<T>(a, shape), map_input<T>(b, shape)},
           [](simd::Vec<T> u, simd::Vec<T> v) { return Formula::f(u, v); });
  });
}

// One of the two gradients: `target` = or += derivative(dy, a, b), summed over the axes that its operand broadcast.
template <class T, class Derivative>
void operand_gradient(formula::Reads reads, const Tensor& dy, const Tensor& a, const Tensor& b, Grad target,
                      Derivative derivative) {
  if (!target) return;
  const Shape &shape = dy.shape(), &own = target.shape();
  // dy stands in for an operand that is not read.
  const auto map_to = [&](Tensor& to, bool add_to) {
    map<T>(shape, to, add_to,
           {map_input<T>(dy, shape), map_input<T>(reads.a ? a : dy, shape), map_input<T>(reads.b ? b : dy, shape)},
           derivative);
  };
  if (own.numel() == shape.numel()) {
    const bool add = target.claim();
    return map_to(target.tensor(), add);
  }
  // Sums are kept in T and rounded once.
  detail::Widened<Grad> sums(target);
  const bool add = sums.get().claim();
  T* out = sums.get().data<T>();
  if (!reads.a && !reads.b && dy.dtype() == dtype_of<T>) {
    sum_into(dy.data<T>(), shape, own, static_cast<double>(derivative(T(1), T(0), T(0))), out, add);
  } else {
    Tensor full = empty(shape, dtype_of<T>, dy.device());
    map_to(full, false);
    sum_into(full.data<T>(), shape, own, 1.0, out, add);
  }
  sums.finish();
}

template <class Formula>
void binary_backward(const char* op, const Tensor& dy, const Tensor& a, const Tensor& b, const Shape& a_shape,
                     const Shape& b_shape, Grad da, Grad db) {
  TAP_CHECK(broadcast(op, a_shape, b_shape) == dy.shape(), op, ": dy must have the broadcast shape of a ", a_shape,
            " and b ", b_shape, ", not ", dy.shape());
  visit_float(op, accumulate_dtype(dy.dtype()), [&]<class T>(TypeTag<T>) {
    operand_gradient<T>(Formula::kDaReads, dy, a, b, da, [](auto g, auto u, auto v) { return Formula::da(g, u, v); });
    operand_gradient<T>(Formula::kDbReads, dy, a, b, db, [](auto g, auto u, auto v) { return Formula::db(g, u, v); });
  });
}

}  // namespace

#define TAP_DEFINE_UNARY(name, Formula)                                                               \
  void name##_forward(const Tensor& x, Tensor& y) { unary_forward(#name, formula::Formula{}, x, y); } \
  void name##_backward(const Tensor& dy, const Tensor& saved, Grad dx) {                              \
    unary_backward(#name, formula::Formula{}, dy, saved, dx);                                         \
  }
TAP_UNARY_OPS(TAP_DEFINE_UNARY)
#undef TAP_DEFINE_UNARY

#define TAP_DEFINE_UNARY(name, Formula)                                                                         \
  void name##_forward(const formula::Formula& f, const Tensor& x, Tensor& y) { unary_forward(#name, f, x, y); } \
  void name##_backward(const formula::Formula& f, const Tensor& dy, const Tensor& saved, Grad dx) {             \
    unary_backward(#name, f, dy, saved, dx);                                                                    \
  }
TAP_UNARY_OPS_WITH_NUMBERS(TAP_DEFINE_UNARY)
#undef TAP_DEFINE_UNARY

#define TAP_DEFINE_BINARY(name, Formula)                                                                               \
  void name##_forward(const Tensor& a, const Tensor& b, Tensor& y) {                                                   \
    binary_forward<formula::Formula>(#name, a, b, y);                                                                  \
  }                                                                                                                    \
  void name##_backward(const Tensor& dy, const Tensor& a, const Tensor& b, const Shape& a_shape, const Shape& b_shape, \
                       Grad da, Grad db) {                                                                             \
    binary_backward<formula::Formula>(#name, dy, a, b, a_shape, b_shape, da, db);                                      \
  }
TAP_BINARY_OPS(TAP_DEFINE_BINARY)
#undef TAP_DEFINE_BINARY

// The mask becomes a tensor of ones and zeros in the operands' type, so the driver sees inputs of one type only.
void where_forward(const Tensor& mask, const Tensor& a, const Tensor& b, Tensor& y) {
  const Shape& shape = y.shape();
  TAP_CHECK(broadcast("where", broadcast("where", a.shape(), b.shape()), mask.shape()) == shape,
            "where: y must have the broadcast shape of mask ", mask.shape(), ", a ", a.shape(), " and b ", b.shape(),
            ", not ", shape);
  const Tensor choice = mask.to(accumulate_dtype(y.dtype()));
  visit_float("where", choice.dtype(), [&]<class T>(TypeTag<T>) {
    map<T>(shape, y, false, {map_input<T>(choice, shape), map_input<T>(a, shape), map_input<T>(b, shape)},
           [](auto m, auto u, auto v) { return simd::select(m != T(0), u, v); });
  });
}

void where_backward(const Tensor& dy, const Tensor& mask, Grad da, Grad db) {
  const Tensor choice = mask.to(accumulate_dtype(dy.dtype()));
  visit_float("where", choice.dtype(), [&]<class T>(TypeTag<T>) {
    constexpr formula::Reads reads{true, false};
    operand_gradient<T>(reads, dy, choice, {}, da,
                        [](auto g, auto m, auto) { return simd::select(m != T(0), g, decltype(g){}); });
    operand_gradient<T>(reads, dy, choice, {}, db,
                        [](auto g, auto m, auto) { return simd::select(m != T(0), decltype(g){}, g); });
  });
}

}  // namespace tapestry::cpu
