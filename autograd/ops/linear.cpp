#include "core/kernels/linear.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"
#include "core/kernels/pointwise.h"

namespace tapestry {

namespace {

constexpr std::size_t kWeight = 1;  // the operand that is a weight

// The shape of x W + b.
Shape check_operands(const char* op, const Var& x, const Var& weight, const Var& bias) {
  const Shape &s = x.shape(), &w = weight.shape();
  TAP_CHECK(s.rank() >= 1 && w.rank() == 2 && w[0] == s.back(), op, ": x is ", s, ", so weight must be [", s.back(),
            ", out], not ", w);
  TAP_CHECK(!bias || bias.shape() == Shape{w[1]}, op, ": weight is ", w, ", so bias must be [", w[1], "], not ",
            bias.shape());
  detail::check_product_types(op, x, weight, bias);
  return s.with_back(w[1]);
}

}  // namespace

Var linear(const Var& x_, const Var& weight_, const Var& bias, const Var& residual) {
  const auto [x, weight] = detail::autocast<"linear", kWeight>(x_, weight_);
  const Shape shape = check_operands("linear", x, weight, bias);
  TAP_CHECK(!residual || (residual.shape() == shape && detail::fits_beside(x, residual)), "linear: the result is ",
            x.dtype(), " ", shape, ", so residual must be too, not ", residual.dtype(), " ", residual.shape(),
            residual.shape() == shape ? "; convert it with cast()" : "");
  Tensor y = empty(shape, residual ? residual.dtype() : x.dtype(), x.device());
  TAP_DISPATCH(linear_forward, x.value(), weight.value(), bias.value(), residual.value(), y);
  return record(
      "linear", y,
      [x = save(x), weight = save(weight)](const Tensor& dy, Grad dx, Grad dweight, Grad dbias, Grad dresidual) {
        TAP_DISPATCH(linear_backward, dy, x(), weight(), dx, dweight, dbias);
        if (dresidual) dresidual.pass(dy);
      },
      x, weight, bias, residual);
}

Var linear_gelu(const Var& x_, const Var& weight_, const Var& bias, GeluForm form) {
  const auto [x, weight] = detail::autocast<"linear_gelu", kWeight>(x_, weight_);
  const Shape shape = check_operands("linear_gelu", x, weight, bias);
  Tensor h = empty(shape, x.dtype(), x.device()), y = empty_like(h);
  TAP_DISPATCH(linear_gelu_forward, x.value(), weight.value(), bias.value(), form, h, y);
  return record(
      "linear_gelu", y,
      [x = save(x), weight = save(weight), h, form](const Tensor& dy, Grad dx, Grad dweight, Grad dbias) {
        GradSlot dh{{}, h.shape(), h.dtype(), h.device()};
        if (form == GeluForm::erf) {
          TAP_DISPATCH(gelu_backward, dy, h, Grad(&dh));
        } else {
          TAP_DISPATCH(gelu_tanh_backward, dy, h, Grad(&dh));
        }
        TAP_DISPATCH(linear_backward, dh.tensor, x(), weight(), dx, dweight, dbias);
      },
      x, weight, bias);
}

}  // namespace tapestry
