#include "core/kernels/cross_entropy.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"

namespace tapestry {

namespace {

void check_options(const char* op, const Var& logits, const CrossEntropyOptions& o) {
  const Shape& s = logits.shape();
  TAP_CHECK(s.rank() >= 1 && s.back() > 0, op, ": logits must be [..., V] with V > 0, not ", s);
  TAP_CHECK(o.label_smoothing >= 0 && o.label_smoothing <= 1, op, ": label_smoothing must be in [0, 1], not ",
            o.label_smoothing);
  const Tensor& w = o.class_weights;
  const DType dtype = accumulate_dtype(logits.dtype());
  TAP_CHECK(!w || (w.shape() == Shape{s.back()} && w.dtype() == dtype), op, ": logits are ", logits.dtype(), " ", s,
            ", so class_weights must be ", dtype, " [", s.back(), "], not ", w.dtype(), " ", w.shape());
}

void check_class_targets(const char* op, const Shape& s, const Tensor& targets) {
  TAP_CHECK(targets.shape() == Shape(s.dims().first(s.dims().size() - 1)), op, ": logits are ", s,
            ", so targets must have that shape without its last axis, not ", targets.shape());
  TAP_CHECK(targets.dtype() == DType::i32 || targets.dtype() == DType::i64, op, ": targets must be i32 or i64, not ",
            targets.dtype());
}

// Losses and their statistics are f32 for 16-bit logits.
Tensor empty_result(const Shape& shape, const Var& logits) {
  return empty(shape, accumulate_dtype(logits.dtype()), logits.device());
}
Tensor empty_row_stats(const Var& logits) { return empty_result({logits.shape().rows(), 2}, logits); }

}  // namespace

CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  check_options("cross_entropy", logits, options);
  check_class_targets("cross_entropy", logits.shape(), targets);
  Tensor loss = empty_result({}, logits), row_stats = empty_row_stats(logits);
  CrossEntropyCounts counts;
  TAP_DISPATCH(cross_entropy_forward, logits.value(), targets, options, loss, row_stats, counts);
  const Var result = record(
      "cross_entropy", loss,
      [logits = save(logits), targets = save(targets), weights = save(options.class_weights), options, row_stats,
       counts](const Tensor& dloss, Grad dlogits) {
        weights();  // options share its storage: checks that it was not changed
        TAP_DISPATCH(cross_entropy_backward, dloss, logits(), targets(), options, row_stats, counts, dlogits);
      },
      logits);
  return {result, counts.rows};
}

CrossEntropy soft_cross_entropy(const Var& logits_, const Var& targets_, const CrossEntropyOptions& options) {
  const auto [logits, targets] = detail::autocast<"soft_cross_entropy">(logits_, targets_);
  check_options("soft_cross_entropy", logits, options);
  TAP_CHECK(targets.shape() == logits.shape(), "soft_cross_entropy: logits are ", logits.shape(),
            ", so targets must be a probability for each of them, not ", targets.shape(),
            "; class indices go to cross_entropy");
  detail::check_one_dtype("soft_cross_entropy", "logits and targets", logits.dtype(), targets.dtype());
  Tensor loss = empty_result({}, logits), row_stats = empty_row_stats(logits);
  TAP_DISPATCH(soft_cross_entropy_forward, logits.value(), targets.value(), options, loss, row_stats);
  const Var result = record(
      "soft_cross_entropy", loss,
      [logits = save(logits), targets = save(targets), weights = save(options.class_weights), options, row_stats](
          const Tensor& dloss, Grad dlogits, Grad dtargets) {
        weights();
        TAP_DISPATCH(soft_cross_entropy_backward, dloss, logits(), targets(), options, row_stats, dlogits, dtargets);
      },
      logits, targets);
  return {result, logits.shape().rows()};
}

Var nll(const Var& log_probs_, const Tensor& targets, const NllOptions& options) {
  const auto [log_probs] = detail::autocast<"nll">(log_probs_);
  const CrossEntropyOptions o{.ignore_index = options.ignore_index, .class_weights = options.class_weights};
  check_options("nll", log_probs, o);
  check_class_targets("nll", log_probs.shape(), targets);
  const bool mean = options.reduction == LossReduction::mean, each = options.reduction == LossReduction::none;
  Tensor y = empty_result(each ? targets.shape() : Shape{}, log_probs);
  CrossEntropyCounts counts;
  TAP_DISPATCH(nll_forward, log_probs.value(), targets, o, mean, y, counts);
  return record(
      "nll", y,
      [targets = save(targets), weights = save(o.class_weights), o, mean, counts](const Tensor& dy, Grad dlog_probs) {
        weights();
        TAP_DISPATCH(nll_backward, dy, targets(), o, mean, counts, dlog_probs);
      },
      log_probs);
}

}  // namespace tapestry
