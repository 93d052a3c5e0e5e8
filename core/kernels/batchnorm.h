// BatchNorm (Ioffe & Szegedy 2015): each channel of x [N, C] or [N, C, L...] is normalised over all other axes,
// xhat = (x - mean) * rstd, rstd = 1 / sqrt(var + eps), y = xhat * weight + bias. Saved: mean and rstd [C], in the
// accumulate dtype.
// With `training` the statistics are the batch's, in two passes and biased, and the running ones move by `momentum`
// towards the batch's mean and *unbiased* variance (unless the batch is empty); otherwise they are the running ones.
// Backward, with averages over the channel: dx = weight rstd (dy - avg(dy) - xhat avg(dy xhat)), without both averages
// unless training; dweight = sum of dy xhat, dbias = sum of dy.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

TAP_KERNEL(batchnorm_forward, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool training,
           double momentum, Tensor& running_mean, Tensor& running_var, Tensor& y, Tensor& mean, Tensor& rstd)
TAP_KERNEL(batchnorm_backward, const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
           const Tensor& rstd, bool training, Grad dx, Grad dweight, Grad dbias)

}  // namespace tapestry
