// y = x W + b for rows of x: [N, in] x [in, out] + [out].
// Backward: dx = dy W^T, dW = x^T dy, db = column sums of dy.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

TAP_KERNEL(linear_forward, const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y)  // bias may be empty
TAP_KERNEL(linear_backward, const Tensor& dy, const Tensor& x, const Tensor& weight, Grad dx, Grad dweight, Grad dbias)

}  // namespace tapestry
