#include "core/kernels/pointwise.h"

#include "autograd/ops.h"
#include "core/kernels/pointwise_formulas.h"

namespace tapestry {

namespace {

// What a formula's derivative reads.
template <class Formula>
Saved save_for(const Tensor& x, const Tensor& y) {
  if constexpr (Formula::kSaves == Saves::input) return save(x);
  if constexpr (Formula::kSaves == Saves::output) return save(y);
  return save(Tensor());
}

Tensor empty_broadcast(const char* op, const Var& a, const Var& b) {
  TAP_CHECK(a.dtype() == b.dtype(), op, ": operands must have one dtype, not ", a.dtype(), " and ", b.dtype(),
            "; convert one with Tensor::to");
  return empty(broadcast(op, a.shape(), b.shape()), a.dtype(), a.device());
}

}  // namespace

#define TAP_DEFINE_UNARY(name, Formula)                                                 \
  Var name(const Var& x) {                                                              \
    Tensor y = empty_like(x.value());                                                   \
    TAP_DISPATCH(name##_forward, x.value(), y);                                         \
    return record(                                                                      \
        #name, y,                                                                       \
        [saved = save_for<formula::Formula>(x.value(), y)](const Tensor& dy, Grad dx) { \
          TAP_DISPATCH(name##_backward, dy, saved(), dx);                               \
        },                                                                              \
        x);                                                                             \
  }
TAP_UNARY_OPS(TAP_DEFINE_UNARY)
#undef TAP_DEFINE_UNARY

Var add(const Var& a, const Var& b) {
  Tensor y = empty_broadcast("add", a, b);
  TAP_DISPATCH(add_forward, a.value(), b.value(), y);
  return record(
      "add", y,
      [sa = a.shape(), sb = b.shape()](const Tensor& dy, Grad da, Grad db) {
        // An operand that was not broadcast gets dy itself.
        const bool pass_a = da && sa == dy.shape(), pass_b = db && sb == dy.shape();
        if (pass_a) da.pass(dy);
        if (pass_b) db.pass(dy);
        const Grad rest_a = pass_a ? Grad() : da, rest_b = pass_b ? Grad() : db;
        if (rest_a || rest_b) TAP_DISPATCH(add_backward, dy, Tensor(), Tensor(), sa, sb, rest_a, rest_b);
      },
      a, b);
}

Var sub(const Var& a, const Var& b) {
  Tensor y = empty_broadcast("sub", a, b);
  TAP_DISPATCH(sub_forward, a.value(), b.value(), y);
  return record(
      "sub", y,
      [sa = a.shape(), sb = b.shape()](const Tensor& dy, Grad da, Grad db) {
        const bool pass_a = da && sa == dy.shape();
        if (pass_a) da.pass(dy);
        const Grad rest_a = pass_a ? Grad() : da;
        if (rest_a || db) TAP_DISPATCH(sub_backward, dy, Tensor(), Tensor(), sa, sb, rest_a, db);
      },
      a, b);
}

Var mul(const Var& a, const Var& b) {
  Tensor y = empty_broadcast("mul", a, b);
  TAP_DISPATCH(mul_forward, a.value(), b.value(), y);
  return record(
      "mul", y,
      [a = save(a), b = save(b)](const Tensor& dy, Grad da, Grad db) {
        TAP_DISPATCH(mul_backward, dy, a(), b(), a().shape(), b().shape(), da, db);
      },
      a, b);
}

Var div(const Var& a, const Var& b) {
  Tensor y = empty_broadcast("div", a, b);
  TAP_DISPATCH(div_forward, a.value(), b.value(), y);
  return record(
      "div", y,
      [a = save(a), b = save(b)](const Tensor& dy, Grad da, Grad db) {
        TAP_DISPATCH(div_backward, dy, a(), b(), a().shape(), b().shape(), da, db);
      },
      a, b);
}

Var scale(const Var& x, double factor) {
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(affine_forward, x.value(), factor, 0.0, y);
  return record(
      "scale", y, [factor](const Tensor& dy, Grad dx) { TAP_DISPATCH(affine_backward, dy, factor, dx); }, x);
}

Var add_scalar(const Var& x, double value) {
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(affine_forward, x.value(), 1.0, value, y);
  return record(
      "add_scalar", y, [](const Tensor& dy, Grad dx) { dx.pass(dy); }, x);
}

}  // namespace tapestry
