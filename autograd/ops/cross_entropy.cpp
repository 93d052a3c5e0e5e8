#include "core/kernels/cross_entropy.h"

#include "autograd/ops.h"

namespace tapestry {

CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, std::int64_t ignore_index) {
  const Shape& s = logits.shape();
  TAP_CHECK(s.rank() >= 1 && s.back() > 0, "cross_entropy: logits must be [..., V] with V > 0, not ", s);
  TAP_CHECK(targets.shape() == Shape(s.dims().first(s.dims().size() - 1)), "cross_entropy: logits are ", s,
            ", so targets must have that shape without its last axis, not ", targets.shape());
  TAP_CHECK(targets.dtype() == DType::i32 || targets.dtype() == DType::i64,
            "cross_entropy: targets must be i32 or i64, not ", targets.dtype());
  Tensor loss = empty({}, logits.dtype(), logits.device());
  Tensor row_stats = empty({s.rows(), 2}, accumulate_dtype(logits.dtype()), logits.device());
  std::int64_t valid = 0;
  TAP_DISPATCH(cross_entropy_forward, logits.value(), targets, ignore_index, loss, row_stats, valid);
  const Var result = record(
      "cross_entropy", loss,
      [logits = save(logits), targets = save(targets), ignore_index, row_stats, valid](const Tensor& dloss,
                                                                                       Grad dlogits) {
        TAP_DISPATCH(cross_entropy_backward, dloss, logits(), targets(), ignore_index, row_stats, valid, dlogits);
      },
      logits);
  return {result, valid};
}

}  // namespace tapestry
