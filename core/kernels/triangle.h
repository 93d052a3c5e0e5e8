// The lower or upper triangle of every matrix [..., M, N]: the rest is 0, NaN and inf included.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// Keeps column c of row r where c - r <= diagonal (lower) or c - r >= diagonal (upper).
TAP_KERNEL(triangle_forward, const Tensor& x, bool lower, std::int64_t diagonal, Tensor& y)
TAP_KERNEL(triangle_backward, const Tensor& dy, bool lower, std::int64_t diagonal, Grad dx)

}  // namespace tapestry
