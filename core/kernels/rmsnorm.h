// RMSNorm over the last axis (Zhang & Sennrich 2019): xhat = x * rrms, rrms = 1 / sqrt(avg(x^2) + eps),
// y = xhat * weight. Saved: rrms, one per row, in the accumulate dtype.
// Backward, with g = dy * weight and averages over the row: dx = rrms (g - xhat avg(g xhat));
// dweight = sum over rows of dy xhat.
// x, dy and the results may each be f32, f16 or bf16; rrms and arithmetic are f32 then.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

TAP_KERNEL_16BIT(rmsnorm_forward, const Tensor& x, const Tensor& weight, double eps, Tensor& y, Tensor& rrms)
TAP_KERNEL_16BIT(rmsnorm_backward, const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rrms, Grad dx,
                 Grad dweight)

}  // namespace tapestry
