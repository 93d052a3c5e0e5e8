// LayerNorm over the last axis (Ba et al. 2016): xhat = (x - mean) * rstd, y = xhat * weight + bias. The variance is
// taken in a second pass, from x - mean, so a large mean does not cancel. Saved: mean and rstd, one each per row, in
// the accumulate dtype. Backward, with g = dy * weight and averages over the row: dx = rstd (g - avg(g) - xhat k avg(g
// xhat)), where k is 1 or, with std_plus_eps, n / ((n - 1) std rstd), and 0 where std is 0: there the root has no
// slope, only the mean moves. dweight = sum over rows of dy xhat, dbias = sum over rows of dy.
// x, dy and the results may each be f32, f16 or bf16; statistics and arithmetic are f32 then.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

enum class LayerNormForm {
  variance_plus_eps,  // rstd = 1 / sqrt(biased variance + eps), usual eps 1e-5
  std_plus_eps        // rstd = 1 / (std + eps), std unbiased (0 for one element), usual eps 1e-6
};

TAP_KERNEL_16BIT(layernorm_forward, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& y,
                 Tensor& mean, Tensor& rstd, LayerNormForm form = LayerNormForm::variance_plus_eps)
TAP_KERNEL_16BIT(layernorm_backward, const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                 const Tensor& rstd, Grad dx, Grad dweight, Grad dbias,
                 LayerNormForm form = LayerNormForm::variance_plus_eps)

}  // namespace tapestry
