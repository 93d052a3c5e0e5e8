// The L2 norm over axes: y = sqrt(sum(x^2)), finite wherever the result is. `kept` is x's shape with every reduced axis
// set to 1.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// y has kept.numel() elements; over nothing it is 0.
TAP_KERNEL(norm_forward, const Tensor& x, const Shape& kept, Tensor& y)
// dx = dy x / y, and 0 where y is 0.
TAP_KERNEL(norm_backward, const Tensor& dy, const Tensor& x, const Tensor& y, const Shape& kept, Grad dx)

}  // namespace tapestry
