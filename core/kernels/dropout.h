// Inverted dropout: y[i] = keep(i) ? x[i] / (1 - p) : 0 with keep(i) = key.uniform(i) >= p; nothing is stored.
// p = 1 gives zeros, p = 0 copies the bits. A dropped NaN or inf becomes 0.
#pragma once

#include "core/kernels/kernel.h"
#include "core/random.h"

namespace tapestry {

TAP_KERNEL_16BIT(dropout_forward, const Tensor& x, double p, RandomKey key, Tensor& y)
TAP_KERNEL_16BIT(dropout_backward, const Tensor& dy, double p, RandomKey key, Grad dx)

}  // namespace tapestry
