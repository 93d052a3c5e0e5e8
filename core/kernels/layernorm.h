// LayerNorm over the last axis (Ba et al. 2016): xhat = (x - mean) * rstd, rstd = 1 / sqrt(var + eps),
// y = xhat * weight + bias. The variance is biased and taken in a second pass, from x - mean, so a large mean does not
// cancel. Saved: mean and rstd, one each per row, in the accumulate dtype.
// Backward, with g = dy * weight and averages over the row: dx = rstd (g - avg(g) - xhat avg(g xhat));
// dweight = sum over rows of dy xhat, dbias = sum over rows of dy.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

TAP_KERNEL(layernorm_forward, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& y,
           Tensor& mean, Tensor& rstd)
TAP_KERNEL(layernorm_backward, const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
           const Tensor& rstd, Grad dx, Grad dweight, Grad dbias)

}  // namespace tapestry
