// softmax and log_softmax over the last axis: y = exp(x - max) / sum, l = x - max - log(sum).
// A row whose entries are all -inf gives y = 0, l = -inf and passes no gradient. Rows holding NaN give NaN.
// Backward from the output: dx = y (dy - sum(dy y)) and dx = dy - exp(l) sum(dy).
// mask (may be empty) broadcasts to x. u8: nonzero keeps; float of x's dtype: added to x, -inf hides. A hidden entry
// counts as x = -inf and passes no gradient: neither x nor dy there has any effect, NaN included.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

TAP_KERNEL(softmax_forward, const Tensor& x, const Tensor& mask, Tensor& y)
TAP_KERNEL(log_softmax_forward, const Tensor& x, const Tensor& mask, Tensor& y)
// dmask, of a float mask, is dx summed over the axes that the mask broadcasts along.
TAP_KERNEL(softmax_backward, const Tensor& dy, const Tensor& y, const Tensor& mask, Grad dx, Grad dmask)
TAP_KERNEL(log_softmax_backward, const Tensor& dy, const Tensor& y, const Tensor& mask, Grad dx, Grad dmask)

}  // namespace tapestry
