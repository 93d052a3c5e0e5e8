// Elementwise losses l(x, t), one formula each in core/kernels/loss_formulas.h, and nll, which picks one entry of a
// row.
//   forward   y = l(x, t) element by element, or scale * (sum of them) where y has one element
//   backward  dx = scale * dy * dl/dx and dt = scale * dy * dl/dt, from x and t themselves: nothing else is saved.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// Every elementwise loss is one entry here, one formula, one line in autograd/ops.h and one in autograd/ops/losses.cpp.
#define TAP_LOSSES(X)               \
  X(mse, Mse)                       \
  X(l1, L1)                         \
  X(huber, Huber)                   \
  X(bce_with_logits, BceWithLogits) \
  X(kl_div, KlDiv)

// `parameter` broadcasts to x: delta for huber, pos_weight for bce_with_logits; empty for the others. scale is 1 where
// y and dy have the shape of x.
#define TAP_DECLARE_LOSS(name, Formula)                                                                               \
  TAP_KERNEL(name##_forward, const Tensor& x, const Tensor& target, const Tensor& parameter, double scale, Tensor& y) \
  TAP_KERNEL(name##_backward, const Tensor& dy, const Tensor& x, const Tensor& target, const Tensor& parameter,       \
             double scale, Grad dx, Grad dtarget)
TAP_LOSSES(TAP_DECLARE_LOSS)
#undef TAP_DECLARE_LOSS

}  // namespace tapestry
