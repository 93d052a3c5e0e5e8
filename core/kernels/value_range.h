// What the elements of a tensor look like: their range, and how many are NaN, infinite, zero or subnormal. For hunting
// overflow; works on the bits, so it costs one reading of the memory for every type, with the same counts for any
// number of threads.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

struct ValueRange {
  std::int64_t elements = 0, nans = 0, positive_infs = 0, negative_infs = 0, zeros = 0, subnormals = 0;
  std::int64_t first_nonfinite = -1;  // flat index, -1: all are finite
  double first_value = 0;             // there: NaN, inf or -inf
  double min = 0, max = 0;            // of the finite elements; min > max: there is none

  std::int64_t infs() const { return positive_infs + negative_infs; }
  bool finite() const { return first_nonfinite < 0; }
  double largest() const { return min > max ? 0 : max > -min ? max : -min; }  // magnitude
};

double largest_finite(DType dtype);  // 65504 for f16; throws for integers

// Overwrites `range`. x is floating.
TAP_KERNEL_16BIT(value_range, const Tensor& x, ValueRange& range)

}  // namespace tapestry
