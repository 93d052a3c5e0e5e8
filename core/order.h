// Order among the elements of a Tensor: positions of extremes, sorting, the k best. Not differentiable. When sorted,
// NaN is larger than any number, as in PyTorch, and of equal elements the first comes first. f32 and f64.
#pragma once

#include "core/tensor.h"

namespace tapestry {

// Where the largest (smallest) element over `axes` is (none given means all): i64, counted in row-major order over the
// reduced axes, so along a single axis it is the index there. Both give the first NaN if there is one, as max and min
// do. Over nothing: throws.
Tensor argmax(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, const Axes& axes = {}, bool keepdim = false);

struct Sorted {
  Tensor values, indices;  // indices, i64, along the axis: values[i] = x[indices[i]]
};
// Stable, along one axis. NaN comes last when ascending and first when descending.
Sorted sort(const Tensor& x, int axis = -1, bool descending = false);
// The first k of the order that begins with the largest, or else the smallest. k outside [0, extent] throws.
Sorted topk(const Tensor& x, std::int64_t k, int axis = -1, bool largest = true);

}  // namespace tapestry
