// The update of Adafactor (Shazeer & Stern 2018): second moments kept as a row and a column for each matrix.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// g = grad_scale grad, of shape [..., R, C];  for each matrix of it, with means over the other axis:
//   rows [..., R] = beta2 rows + (1 - beta2) mean(g^2 + eps1),  columns [..., C] likewise,
//   u = g / sqrt(rows columns / mean(rows)).
// Vectors and scalars keep all of `v` instead: v = beta2 v + (1 - beta2) (g^2 + eps1),  u = g / sqrt(v).
// Then u /= max(1, rms(u) / clip), alpha = rate max(eps2, rms(p)) or, unless scale_by_value, alpha = rate;
// p = (1 - lr weight_decay) p - alpha u. All of one parameter; either `rows` and `columns` or `v` is an empty handle.
struct AdafactorStep {
  double lr, rate, beta2, eps1, eps2, clip, weight_decay, grad_scale;
  bool scale_by_value;
};
TAP_KERNEL(adafactor_update, Tensor& value, const Tensor& grad, Tensor& rows, Tensor& columns, Tensor& v,
           const AdafactorStep& step)

}  // namespace tapestry
