// loss = sum over rows that count of (logsumexp(z) - z[target]) / count. The row maximum is subtracted first and then
// the target's logit, so a large shared offset costs nothing. Saved: lse - max and max of each row as [rows, 2].
// Backward: dz = (softmax(z) - onehot(target)) * dloss / count; rows with target == ignore_index get exact zeros.
// A counted row whose logits are all -inf has no loss: it gives NaN.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// Throws for a target outside [0, V) that is not ignore_index. valid_rows: targets that counted; none gives loss 0.
TAP_KERNEL(cross_entropy_forward, const Tensor& logits, const Tensor& targets, std::int64_t ignore_index, Tensor& loss,
           Tensor& row_stats, std::int64_t& valid_rows)
TAP_KERNEL(cross_entropy_backward, const Tensor& dloss, const Tensor& logits, const Tensor& targets,
           std::int64_t ignore_index, const Tensor& row_stats, std::int64_t valid_rows, Grad dlogits)

}  // namespace tapestry
