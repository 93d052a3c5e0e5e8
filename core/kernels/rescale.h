// What changes gradients in place, on elements of a flat buffer: unscaling and clipping by value.
#pragma once

#include "core/kernels/optimizer.h"

namespace tapestry {

// x = min(max(factor x, -limit), limit) for elements of the range; NaN stays NaN.
TAP_KERNEL(rescale, Tensor& x, const FlatRange& range, double factor, double limit)

}  // namespace tapestry
