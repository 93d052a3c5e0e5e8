// The update of LAMB (You et al. 2020): Adam's direction, scaled for each parameter by |p| / |direction|.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// g = grad_scale grad;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// u = mhat / (sqrt(vhat) + eps) + weight_decay p, with the moments bias-corrected by t = updates;
// p -= lr (|p| / |u|) u, with the ratio 1 where one of the norms is 0. All of one parameter.
struct LambStep {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  std::int64_t updates;
};
TAP_KERNEL(lamb_update, Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const LambStep& step)

}  // namespace tapestry
