// Elementwise parameter updates and the gradient norm, on elements [begin, end) of flat buffers of equal length.
// One pass over memory each; the clip factor (grad_scale) is applied on the fly, so gradients are never written.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

struct FlatRange {
  std::int64_t begin = 0, end = 0;
};

// g = grad_scale * grad;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// p = (1 - lr weight_decay) p - lr mhat / (sqrt(vhat) + eps), mhat = m / (1 - beta1^updates), vhat likewise.
struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  std::int64_t updates;  // that m and v have received, this one included
};
TAP_KERNEL(adamw_update, Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const FlatRange& range,
           const AdamWStep& step)

// g = grad_scale * grad + weight_decay p;  u = g in the first update, then momentum u + g;
// p -= lr u, or with nesterov p -= lr (g + momentum u). `velocity` holds u; an empty handle where momentum is 0.
struct SgdStep {
  double lr, momentum, weight_decay, grad_scale;
  bool nesterov;
  std::int64_t updates;
};
TAP_KERNEL(sgd_update, Tensor& value, const Tensor& grad, Tensor& velocity, const FlatRange& range, const SgdStep& step)

// Adds the sum of squares to `sum`, in double: finite exactly where every f32 element is. The order depends on the
// range only.
TAP_KERNEL(square_sum, const Tensor& x, const FlatRange& range, double& sum)

}  // namespace tapestry
