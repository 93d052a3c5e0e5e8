// Cross-entropy of rows z of logits [V] against a class index or a distribution. With l_c = logsumexp(z) - z_c, class
// weights w and smoothing s:
//   index t         loss = sum over counted rows of ((1 - s) w_t l_t + s / V sum_c w_c l_c) / sum over them of w_t
//   distribution q  loss = sum over rows of sum_c w_c ((1 - s) q_c + s / V) l_c / rows
//   z-loss          adds coefficient * mean over counted rows of logsumexp(z)^2
// The row maximum is subtracted first and then the logit, so a large shared offset costs nothing. A share of exactly 0
// adds exactly 0, even of an infinite l_c. Saved: lse - max and max of each row as [rows, 2].
// Backward, with a_c the factor of l_c in the loss: dz = (softmax(z) (sum_c a_c + 2 coefficient lse / count) - a)
// dloss; rows with target == ignore_index get exact zeros. A counted row whose logits are all -inf has no loss: it
// gives NaN.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // rows with this target do not count; unused with probabilities
  double label_smoothing = 0;        // s in [0, 1]: that share of the target is spread evenly (Szegedy et al. 2016)
  Tensor class_weights = {};         // [V] in the logits' dtype (f32 for 16 bits), none negative; empty: all 1
  double z_loss = 0;                 // coefficient of mean(logsumexp^2) (Chowdhery et al. 2022, PaLM)

  template <class F>
  void for_each_tensor(F&& f) const {
    f(class_weights);
  }
};

// What the loss was divided by.
struct CrossEntropyCounts {
  std::int64_t rows = 0;  // that counted
  double weight = 0;      // of their targets
};

// f16 and bf16 logits give a loss and row_stats in f32 and a gradient in their own type, where they were if it may be.
// Throws for a target outside [0, V) that is not ignore_index. With nothing counted the loss is 0.
TAP_KERNEL_16BIT(cross_entropy_forward, const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options,
                 Tensor& loss, Tensor& row_stats, CrossEntropyCounts& counts)
TAP_KERNEL_16BIT(cross_entropy_backward, const Tensor& dloss, const Tensor& logits, const Tensor& targets,
                 const CrossEntropyOptions& options, const Tensor& row_stats, const CrossEntropyCounts& counts,
                 Grad dlogits)

// targets: a distribution for each row, of the logits' shape and dtype.
TAP_KERNEL(soft_cross_entropy_forward, const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options,
           Tensor& loss, Tensor& row_stats)
TAP_KERNEL(soft_cross_entropy_backward, const Tensor& dloss, const Tensor& logits, const Tensor& targets,
           const CrossEntropyOptions& options, const Tensor& row_stats, Grad dlogits, Grad dtargets)

// y = -w_t log_probs[t] of each row, 0 where it does not count; or, where y has one element, their sum, for `mean`
// divided by the sum of w_t. Only ignore_index and class_weights of the options are read.
TAP_KERNEL(nll_forward, const Tensor& log_probs, const Tensor& targets, const CrossEntropyOptions& options, bool mean,
           Tensor& y, CrossEntropyCounts& counts)
TAP_KERNEL(nll_backward, const Tensor& dy, const Tensor& targets, const CrossEntropyOptions& options, bool mean,
           const CrossEntropyCounts& counts, Grad dlog_probs)

}  // namespace tapestry
