// softmax and log_softmax over the last axis: y = exp(x - max) / sum, l = x - max - log(sum).
// A row whose entries are all -inf gives y = 0, l = -inf and passes no gradient. Rows holding NaN give NaN.
// Backward from the output: dx = y (dy - sum(dy y)) and dx = dy - exp(l) sum(dy).
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

TAP_KERNEL(softmax_forward, const Tensor& x, Tensor& y)
TAP_KERNEL(softmax_backward, const Tensor& dy, const Tensor& y, Grad dx)
TAP_KERNEL(log_softmax_forward, const Tensor& x, Tensor& y)
TAP_KERNEL(log_softmax_backward, const Tensor& dy, const Tensor& y, Grad dx)

}  // namespace tapestry
