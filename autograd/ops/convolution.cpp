// conv1d is the convolution of planes of height 1: the kernel sees the same memory with one axis more.
#include "core/kernels/convolution.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"

namespace tapestry {

namespace {

constexpr std::size_t kWeight = 1;  // the operand that is a weight

// All that does not depend on the number of axes: channels, groups, bias, dtypes.
void check_operands(const char* op, const Var& x, const Var& weight, const Var& bias, std::int64_t groups) {
  const Shape &s = x.shape(), &w = weight.shape();
  TAP_CHECK(s[1] > 0 && w[0] > 0, op, ": x and weight need at least 1 channel, but they are ", s, " and ", w);
  TAP_CHECK(groups > 0 && s[1] % groups == 0, op, ": ", groups, " groups do not divide the ", s[1],
            " channels of x; use one of ", divisors(s[1]));
  TAP_CHECK(w[0] % groups == 0, op, ": ", groups, " groups do not divide the ", w[0],
            " output channels of weight; use one of ", divisors(w[0]));
  TAP_CHECK(w[1] == s[1] / groups, op, ": x is ", s, " with ", groups, groups == 1 ? " group" : " groups",
            ", so axis 1 of weight must be ", s[1] / groups, ", but it is ", w);
  TAP_CHECK(!bias || bias.shape() == Shape{w[0]}, op, ": weight is ", w, ", so bias must be [", w[0], "], not ",
            bias.shape());
  detail::check_product_types(op, x, weight, bias);
}

Var convolve(const char* op, const Var& x, const Var& weight, const Var& bias, const ConvolutionLayout& layout,
             const Shape& result) {
  Tensor y = empty(result, x.dtype(), x.device());
  TAP_DISPATCH(convolution_forward, x.value(), weight.value(), bias.value(), layout, y);
  return record(
      op, y,
      [x = save(x), weight = save(weight), layout](const Tensor& dy, Grad dx, Grad dweight, Grad dbias) {
        TAP_DISPATCH(convolution_backward, dy, x(), weight(), layout, dx, dweight, dbias);
      },
      x, weight, bias);
}

}  // namespace

Var conv1d(const Var& x_, const Var& weight_, const Var& bias, const Conv1dOptions& o) {
  const auto [x, weight] = detail::autocast<"conv1d", kWeight>(x_, weight_);
  const Shape &s = x.shape(), &w = weight.shape();
  TAP_CHECK(s.rank() == 3 && w.rank() == 3, "conv1d: x must be [N, C, L] and weight [out, C / groups, size], not ", s,
            " and ", w);
  check_operands("conv1d", x, weight, bias, o.groups);
  const Window window{{}, {w[2], o.stride, o.padding, o.dilation}};
  check_window("conv1d", window, s);
  const ConvolutionLayout layout{s[0], s[1], w[0], o.groups, Unfolding(window, 1, s[2])};
  return convolve("conv1d", x, weight, bias, layout, {s[0], w[0], layout.unfolding.across});
}

Var conv2d(const Var& x_, const Var& weight_, const Var& bias, const Conv2dOptions& o) {
  const auto [x, weight] = detail::autocast<"conv2d", kWeight>(x_, weight_);
  const Shape &s = x.shape(), &w = weight.shape();
  TAP_CHECK(s.rank() == 4 && w.rank() == 4, "conv2d: x must be [N, C, H, W] and weight [out, C / groups, h, w], not ",
            s, " and ", w);
  check_operands("conv2d", x, weight, bias, o.groups);
  const Window window{{w[2], o.stride.h, o.padding.h, o.dilation.h}, {w[3], o.stride.w, o.padding.w, o.dilation.w}};
  check_window("conv2d", window, s);
  const ConvolutionLayout layout{s[0], s[1], w[0], o.groups, Unfolding(window, s[2], s[3])};
  return convolve("conv2d", x, weight, bias, layout, {s[0], w[0], layout.unfolding.down, layout.unfolding.across});
}

}  // namespace tapestry
