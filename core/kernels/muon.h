// The update of Muon (Jordan et al. 2024): the momentum of a matrix, made nearly orthogonal.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// g = grad_scale grad;  velocity = momentum velocity + (1 - momentum) g;
// u = velocity, or with nesterov (1 - momentum) g + momentum velocity;
// X = u / max(|u|, eps), then `iterations` times X = (a I + b A + c A^2) X with A = X X^T, on the shorter side, and
// (a, b, c) = (3.4445, -4.7750, 2.0315): singular values of X come to lie near 1;
// p = (1 - lr weight_decay) p - rate X.  All tensors [R, C].
struct MuonStep {
  double lr, rate, momentum, eps, weight_decay, grad_scale;
  bool nesterov;
  int iterations;
};
TAP_KERNEL(muon_update, Tensor& value, const Tensor& grad, Tensor& velocity, const MuonStep& step)

}  // namespace tapestry
