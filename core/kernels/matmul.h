// Batched matrix product: y[i] = op(a[i]) op(b[i]) for every batch index i, operands broadcast over the batch.
// Where a and b are f16 or bf16, y, dy, da and db may each have 16 bits or be f32.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

struct MatmulLayout {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  Shape batch;  // broadcast leading axes of y
  // Strides of a and b over the batch axes, in matrices (0 where that operand broadcasts).
  std::int64_t stride_a[Shape::kMaxRank] = {}, stride_b[Shape::kMaxRank] = {};
};

// Where b is not batched and a not transposed, the batch is folded into the rows: one large product.
TAP_KERNEL_16BIT(matmul_forward, const Tensor& a, const Tensor& b, const MatmulLayout& layout, Tensor& y)
// da = dy b^T, db = a^T dy (transposed where the flags say so), summed over the batch axes that broadcast.
TAP_KERNEL_16BIT(matmul_backward, const Tensor& dy, const Tensor& a, const Tensor& b, const MatmulLayout& layout,
                 Grad da, Grad db)

}  // namespace tapestry
