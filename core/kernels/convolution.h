// A window of weights that slides over planes, channels summed within groups:
//   y[n, o, p] = bias[o] + sum over c, tap of weight[o, c, tap] x[n, group(o) * C / groups + c, element(p, tap)]
// In matrices, for each sample and group: y = W X, where X is the unfolded x (see unfold.h).
// Backward: dx = W^T dy, folded; dW = sum over samples of dy X^T; db = sums of dy over samples and places.
// Padding is zeros that take part in the products, so an infinite weight over padding gives NaN, as 0 * inf does.
#pragma once

#include "core/kernels/unfold.h"

namespace tapestry {

struct ConvolutionLayout {
  std::int64_t batch, in_channels, out_channels, groups;
  Unfolding unfolding;

  std::int64_t group_in() const { return in_channels / groups; }
  std::int64_t group_out() const { return out_channels / groups; }
  std::int64_t depth() const { return group_in() * unfolding.taps(); }  // terms of one element of y
};

// x [N, C, H, W], weight [O, C / groups, kh, kw], bias [O] or empty, y [N, O, places down, places across]; where H and
// kh are 1, these axes may be absent.
TAP_KERNEL(convolution_forward, const Tensor& x, const Tensor& weight, const Tensor& bias,
           const ConvolutionLayout& layout, Tensor& y)
TAP_KERNEL(convolution_backward, const Tensor& dy, const Tensor& x, const Tensor& weight,
           const ConvolutionLayout& layout, Grad dx, Grad dweight, Grad dbias)

}  // namespace tapestry
