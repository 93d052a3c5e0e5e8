// log(sum(exp(x))) over axes. `kept` is x's shape with every reduced axis set to 1. A slice of -inf only, or of
// nothing, gives -inf and passes no gradient; one that holds +inf gives +inf; NaN gives NaN.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// y, shift and factor have kept.numel() elements. shift is what was subtracted before exp, factor is 1 / sum.
TAP_KERNEL(logsumexp_forward, const Tensor& x, const Shape& kept, Tensor& y, Tensor& shift, Tensor& factor)
// dx = dy exp(x - shift) factor.
TAP_KERNEL(logsumexp_backward, const Tensor& dy, const Tensor& x, const Tensor& shift, const Tensor& factor,
           const Shape& kept, Grad dx)

}  // namespace tapestry
