#include "core/kernels/loss.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"

namespace tapestry {

namespace {

struct Plan {
  Shape shape;       // of the result
  double scale = 1;  // of the sum
};

Plan plan(const char* op, const Shape& shape, LossReduction reduction) {
  if (reduction == LossReduction::none) return {shape};
  if (reduction == LossReduction::sum) return {};
  TAP_CHECK(shape.numel() > 0, op, ": needs at least one element to average, x is ", shape,
            "; use LossReduction::sum for 0");
  return {{}, 1 / static_cast<double>(shape.numel())};
}

void check_pair(const char* op, const Var& x, const Var& target) {
  TAP_CHECK(x.shape() == target.shape(), op, ": x is ", x.shape(), " and target is ", target.shape(),
            ", but losses do not broadcast; reshape or expand one of them");
  detail::check_one_dtype(op, "x and target", x.dtype(), target.dtype());
}

}  // namespace

// A loss of two tensors of one shape and a parameter that broadcasts to them (an empty Tensor for most).
#define TAP_DEFINE_LOSS(name, Formula)                                                                                \
  static Var name##_loss(const Var& x_, const Var& target_, const Tensor& parameter, LossReduction reduction) {       \
    const auto [x, target] = detail::autocast<#name>(x_, target_);                                                    \
    check_pair(#name, x, target);                                                                                     \
    const Plan p = plan(#name, x.shape(), reduction);                                                                 \
    Tensor y = empty(p.shape, accumulate_dtype(x.dtype()), x.device());                                               \
    TAP_DISPATCH(name##_forward, x.value(), target.value(), parameter, p.scale, y);                                   \
    return record(                                                                                                    \
        #name, y,                                                                                                     \
        [x = save(x), target = save(target), parameter = save(parameter), scale = p.scale](const Tensor& dy, Grad dx, \
                                                                                           Grad dtarget) {            \
          TAP_DISPATCH(name##_backward, dy, x(), target(), parameter(), scale, dx, dtarget);                          \
        },                                                                                                            \
        x, target);                                                                                                   \
  }
TAP_LOSSES(TAP_DEFINE_LOSS)
#undef TAP_DEFINE_LOSS

Var mse(const Var& x, const Var& target, LossReduction reduction) { return mse_loss(x, target, {}, reduction); }

Var l1(const Var& x, const Var& target, LossReduction reduction) { return l1_loss(x, target, {}, reduction); }

Var huber(const Var& x, const Var& target, double delta, LossReduction reduction) {
  TAP_CHECK(delta > 0, "huber: delta must be positive, not ", delta);
  return huber_loss(x, target, full({}, delta, accumulate_dtype(x.dtype()), x.device()), reduction);
}

Var bce_with_logits(const Var& x, const Var& target, const Tensor& pos_weight, LossReduction reduction) {
  const DType dtype = accumulate_dtype(x.dtype());
  if (!pos_weight) return bce_with_logits_loss(x, target, full({}, 1, dtype, x.device()), reduction);
  TAP_CHECK(broadcast("bce_with_logits", pos_weight.shape(), x.shape()) == x.shape(), "bce_with_logits: pos_weight is ",
            pos_weight.shape(), ", which does not broadcast to x ", x.shape());
  TAP_CHECK(pos_weight.dtype() == dtype, "bce_with_logits: x is ", x.dtype(), ", so pos_weight must be ", dtype,
            ", not ", pos_weight.dtype(), "; convert it with Tensor::to");
  return bce_with_logits_loss(x, target, pos_weight, reduction);
}

Var kl_div(const Var& x, const Var& target, LossReduction reduction) { return kl_div_loss(x, target, {}, reduction); }

}  // namespace tapestry
