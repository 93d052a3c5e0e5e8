// y = x W + b + r for rows of x: [N, in] x [in, out] + [out] + [N, out].
// Backward: dx = dy W^T, dW = x^T dy, db = column sums of dy, dr = dy.
// Where x and W are f16 or bf16, each of the other tensors may have 16 bits or be f32: all is summed up in f32 and
// rounded once.
#pragma once

#include "core/kernels/gemm.h"
#include "core/kernels/kernel.h"

namespace tapestry {

// bias and residual may be empty.
TAP_KERNEL_16BIT(linear_forward, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                 Tensor& y)
// h = x W + b, y = gelu(h) of the h that is stored. Backward is that of gelu and then that of linear.
TAP_KERNEL_16BIT(linear_gelu_forward, const Tensor& x, const Tensor& weight, const Tensor& bias, GeluForm form,
                 Tensor& h, Tensor& y)
TAP_KERNEL_16BIT(linear_backward, const Tensor& dy, const Tensor& x, const Tensor& weight, Grad dx, Grad dweight,
                 Grad dbias)

}  // namespace tapestry
