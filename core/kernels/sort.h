// The first k elements of the sorted order along one axis, and where they were.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// values and indices (i64) have x's shape with k at `axis`, counted from 0. NaN counts as larger than any number; equal
// elements keep their order.
TAP_KERNEL(sort_forward, const Tensor& x, int axis, std::int64_t k, bool descending, Tensor& values, Tensor& indices)

}  // namespace tapestry
