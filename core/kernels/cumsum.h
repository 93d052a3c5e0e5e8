// Running sums along one axis.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// y[i] = x[0] + ... + x[i] along `axis`, counted from 0.
TAP_KERNEL(cumsum_forward, const Tensor& x, int axis, Tensor& y)
// dx[i] = dy[i] + ... + dy[n - 1].
TAP_KERNEL(cumsum_backward, const Tensor& dy, int axis, Grad dx)

}  // namespace tapestry
