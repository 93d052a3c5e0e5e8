// Variance and standard deviation over axes: y = sum((x - mean)^2) / (n - correction), or its root, over the n elements
// of a slice. `kept` is x's shape with every reduced axis set to 1; n > correction.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// y and mean have kept.numel() elements.
TAP_KERNEL(variance_forward, const Tensor& x, const Shape& kept, double correction, bool root, Tensor& y, Tensor& mean)
// dx = 2 dy (x - mean) / (n - correction); given `root` = y of the standard deviation, dy (x - mean) / (n - correction)
// / root, and 0 where root is 0. An empty root means the variance.
TAP_KERNEL(variance_backward, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& root,
           const Shape& kept, double correction, Grad dx)

}  // namespace tapestry
