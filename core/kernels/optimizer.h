// Elementwise parameter updates and the gradient norm, on elements [begin, end) of flat buffers of equal length.
// One pass over memory each; the clip factor (grad_scale) is applied on the fly, so gradients are never written.
// In all of them t = updates is the number of updates that the moments have received, this one included.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

struct FlatRange {
  std::int64_t begin = 0, end = 0;
};

// u = grad_scale grad + weight_decay p;  v = u in the first update, then momentum v + u;
// p -= lr v, or with nesterov p -= lr (u + momentum v). `velocity` holds v; an empty handle where momentum is 0.
struct SgdStep {
  double lr, momentum, weight_decay, grad_scale;
  bool nesterov;
  std::int64_t updates;
};
TAP_KERNEL(sgd_update, Tensor& value, const Tensor& grad, Tensor& velocity, const FlatRange& range, const SgdStep& step)

// g = grad_scale grad (+ weight_decay p unless decoupled);  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2)
// g^2; p = (1 - lr weight_decay if decoupled) p - lr mhat / (sqrt(vhat) + eps), mhat = m / (1 - beta1^t), vhat
// likewise.
struct AdamStep {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  bool decoupled;
  std::int64_t updates;
};
TAP_KERNEL(adam_update, Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const FlatRange& range,
           const AdamStep& step)

// g = grad_scale grad + weight_decay p;  v = alpha v + (1 - alpha) g^2;  u = g / (sqrt(v) + eps), where a `mean` is
// given with mean = alpha mean + (1 - alpha) g and v - mean^2 in the root;  p -= lr u, where a `velocity` is given with
// velocity = momentum velocity + u in place of u. `mean` and `velocity` may be empty handles.
struct RmsPropStep {
  double lr, alpha, eps, weight_decay, momentum, grad_scale;
};
TAP_KERNEL(rmsprop_update, Tensor& value, const Tensor& grad, Tensor& v, Tensor& mean, Tensor& velocity,
           const FlatRange& range, const RmsPropStep& step)

// g = grad_scale grad + weight_decay p;  sum += g^2, from `initial` at first;  p -= lr g / (sqrt(sum) + eps).
struct AdagradStep {
  double lr, eps, initial, weight_decay, grad_scale;
  std::int64_t updates;
};
TAP_KERNEL(adagrad_update, Tensor& value, const Tensor& grad, Tensor& sum, const FlatRange& range,
           const AdagradStep& step)

// g = grad_scale grad;  p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p);  m = beta2 m + (1 - beta2) g.
struct LionStep {
  double lr, beta1, beta2, weight_decay, grad_scale;
};
TAP_KERNEL(lion_update, Tensor& value, const Tensor& grad, Tensor& m, const FlatRange& range, const LionStep& step)

// average = decay average + (1 - decay) value.
TAP_KERNEL(ema_update, Tensor& average, const Tensor& value, double decay)

// Exchanges the elements of two tensors of equal shape and dtype.
TAP_KERNEL(swap_elements, Tensor& a, Tensor& b)

// Adds the sum of squares to `sum`, in double: finite exactly where every f32 element is. The order depends on the
// range only.
TAP_KERNEL(square_sum, const Tensor& x, const FlatRange& range, double& sum)

}  // namespace tapestry
