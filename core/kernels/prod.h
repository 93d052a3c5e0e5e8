// The product over axes. `kept` is x's shape with every reduced axis set to 1.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// y has kept.numel() elements; over nothing it is 1.
TAP_KERNEL(prod_forward, const Tensor& x, const Shape& kept, Tensor& y)
// dx = dy times the product of all the others, never a quotient: right with any number of zeros.
TAP_KERNEL(prod_backward, const Tensor& dy, const Tensor& x, const Shape& kept, Grad dx)

}  // namespace tapestry
