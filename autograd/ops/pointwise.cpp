#include "core/kernels/pointwise.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"
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
  detail::check_one_dtype(op, "operands", a.dtype(), b.dtype());
  return empty(broadcast(op, a.shape(), b.shape()), a.dtype(), a.device());
}

}  // namespace

#define TAP_DEFINE_UNARY(name, Formula)                                                 \
  Var name(const Var& x_) {                                                             \
    const auto [x] = detail::autocast<#name>(x_);                                       \
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

// The same for a formula that holds numbers, which backward then needs too.
#define TAP_DEFINE_APPLY(name, Formula)                                                    \
  template <detail::OpName kOp>                                                            \
  static Var apply(const Var& x_, const formula::Formula& f) {                             \
    const auto [x] = detail::autocast<kOp>(x_);                                            \
    Tensor y = empty_like(x.value());                                                      \
    TAP_DISPATCH(name##_forward, f, x.value(), y);                                         \
    return record(                                                                         \
        kOp.text, y,                                                                       \
        [f, saved = save_for<formula::Formula>(x.value(), y)](const Tensor& dy, Grad dx) { \
          TAP_DISPATCH(name##_backward, f, dy, saved(), dx);                               \
        },                                                                                 \
        x);                                                                                \
  }
TAP_UNARY_OPS_WITH_NUMBERS(TAP_DEFINE_APPLY)
#undef TAP_DEFINE_APPLY

Var scale(const Var& x, double factor) { return apply<"scale">(x, formula::Affine{factor, 0}); }
Var affine(const Var& x, double factor, double offset) { return apply<"affine">(x, formula::Affine{factor, offset}); }
Var reciprocal(const Var& x, double numerator) { return apply<"reciprocal">(x, formula::Reciprocal{numerator}); }
Var pow(const Var& x, double exponent) { return apply<"pow">(x, formula::Power{exponent}); }
Var leaky_relu(const Var& x, double slope) { return apply<"leaky_relu">(x, formula::LeakyRelu{slope}); }
Var elu(const Var& x, double alpha) { return apply<"elu">(x, formula::Elu{alpha}); }

Var clamp(const Var& x, double low, double high) {
  TAP_CHECK(low <= high, "clamp: low must not be above high, given ", low, " and ", high,
            "; use infinity for no bound");
  return apply<"clamp">(x, formula::Clamp{low, high});
}

Var softplus(const Var& x, double beta) {
  TAP_CHECK(beta > 0, "softplus: beta must be positive, not ", beta);
  return apply<"softplus">(x, formula::Softplus{beta});
}

Var add_scalar(const Var& x, double value) {
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(affine_forward, formula::Affine{1, value}, x.value(), y);
  return record(
      "add_scalar", y, [](const Tensor& dy, Grad dx) { dx.pass(dy); }, x);
}

Var add(const Var& a_, const Var& b_) {
  const auto [a, b] = detail::autocast<"add">(a_, b_);
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

Var sub(const Var& a_, const Var& b_) {
  const auto [a, b] = detail::autocast<"sub">(a_, b_);
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

// Ops that keep both operands.
#define TAP_DEFINE_BINARY(name)                                                          \
  Var name(const Var& a_, const Var& b_) {                                               \
    const auto [a, b] = detail::autocast<#name>(a_, b_);                                 \
    Tensor y = empty_broadcast(#name, a, b);                                             \
    TAP_DISPATCH(name##_forward, a.value(), b.value(), y);                               \
    return record(                                                                       \
        #name, y,                                                                        \
        [a = save(a), b = save(b)](const Tensor& dy, Grad da, Grad db) {                 \
          TAP_DISPATCH(name##_backward, dy, a(), b(), a().shape(), b().shape(), da, db); \
        },                                                                               \
        a, b);                                                                           \
  }
TAP_DEFINE_BINARY(mul)
TAP_DEFINE_BINARY(div)
TAP_DEFINE_BINARY(pow)
TAP_DEFINE_BINARY(minimum)
TAP_DEFINE_BINARY(maximum)
#undef TAP_DEFINE_BINARY

static Var choose(const char* op, const Tensor& mask, const Var& a, const Var& b) {
  TAP_CHECK(mask.dtype() == DType::u8, op, ": mask must be u8, as comparisons give it, not ", mask.dtype());
  detail::check_one_dtype(op, "a and b", a.dtype(), b.dtype());
  Tensor y = empty(broadcast(op, broadcast(op, a.shape(), b.shape()), mask.shape()), a.dtype(), a.device());
  TAP_DISPATCH(where_forward, mask, a.value(), b.value(), y);
  return record(
      op, y,
      [mask = save(mask)](const Tensor& dy, Grad da, Grad db) { TAP_DISPATCH(where_backward, dy, mask(), da, db); }, a,
      b);
}

Var where(const Tensor& mask, const Var& a_, const Var& b_) {
  const auto [a, b] = detail::autocast<"where">(a_, b_);
  return choose("where", mask, a, b);
}

Var masked_fill(const Var& x, const Tensor& mask, double value) {
  return choose("masked_fill", mask, Var(full({}, value, x.dtype(), x.device())), x);
}

}  // namespace tapestry
