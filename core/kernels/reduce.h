// Sums over axes, and their reverse. `kept` is x's shape with every reduced axis set to 1.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// y = scale * (x summed over the axes where kept is 1 and x is not). y has kept.numel() elements.
// The order of summation depends on the shape only. f32 sums run in vector lanes and are combined pairwise.
TAP_KERNEL(sum_forward, const Tensor& x, const Shape& kept, double scale, Tensor& y)
// dx = scale * dy broadcast from kept to x's shape.
TAP_KERNEL(sum_backward, const Tensor& dy, const Shape& kept, double scale, Grad dx)

namespace cpu {
// The same sum on raw memory: target = scale * sum, or += with `add`. kept is aligned with `shape` at the last axis.
// Instantiated for float and double.
template <class T>
void sum_into(const T* x, const Shape& shape, const Shape& kept, double scale, T* target, bool add);
}  // namespace cpu

}  // namespace tapestry
