// GroupNorm (Wu & He 2018): the C channels of x [N, C, ...] form `groups` runs of C / groups. Each run of each sample
// is normalised over its channels and all trailing axes, xhat = (x - mean) * rstd, rstd = 1 / sqrt(biased var + eps),
// y = xhat * weight + bias with one weight and bias per channel. Saved: mean and rstd [N, groups], in the accumulate
// dtype.
// Backward, with g = dy * weight and averages over the run: dx = rstd (g - avg(g) - xhat avg(g xhat));
// dweight = sum over samples and trailing axes of dy xhat, dbias = sum of dy.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

TAP_KERNEL(groupnorm_forward, const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t groups,
           double eps, Tensor& y, Tensor& mean, Tensor& rstd)
TAP_KERNEL(groupnorm_backward, const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
           const Tensor& rstd, std::int64_t groups, Grad dx, Grad dweight, Grad dbias)

}  // namespace tapestry
