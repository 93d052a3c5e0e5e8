// The largest or smallest element over axes, and where it is. `kept` is x's shape with every reduced axis set to 1.
// A NaN counts as the extremum of its slice; of equal elements the first in row-major order does.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// y and position (i64) have kept.numel() elements; a position counts the elements of the slice in row-major order.
// A slice has at least one element.
TAP_KERNEL(extremum_forward, const Tensor& x, const Shape& kept, bool largest, Tensor& y, Tensor& position)
// dx is dy at that position, NaN there where y is NaN, and 0 elsewhere.
TAP_KERNEL(extremum_backward, const Tensor& dy, const Tensor& y, const Tensor& position, const Shape& kept, Grad dx)

}  // namespace tapestry
