#include "core/kernels/reduce.h"

#include "autograd/ops.h"
#include "autograd/ops/operands.h"
#include "core/kernels/cumsum.h"
#include "core/kernels/extremum.h"
#include "core/kernels/logsumexp.h"
#include "core/kernels/norm.h"
#include "core/kernels/prod.h"
#include "core/kernels/variance.h"

namespace tapestry {

namespace {

// For what has no value over nothing.
ReducedShape reduce_some(const char* op, const Var& x, const Axes& axes, bool keepdim) {
  const ReducedShape r = reduce_shape(op, x.shape(), axes, keepdim);
  TAP_CHECK(x.numel() > 0 || r.kept.numel() == 0, op, ": needs at least one element for each result, x is ", x.shape());
  return r;
}

// Elements behind each result; 0 where there are no results.
std::int64_t slice_length(const Var& x, const Shape& kept) { return kept.numel() ? x.numel() / kept.numel() : 0; }

Var scaled_sum(const char* op, const Var& x, const ReducedShape& r, double scale) {
  Tensor y = empty(r.result, x.dtype(), x.device());
  TAP_DISPATCH(sum_forward, x.value(), r.kept, scale, y);
  return record(
      op, y, [kept = r.kept, scale](const Tensor& dy, Grad dx) { TAP_DISPATCH(sum_backward, dy, kept, scale, dx); }, x);
}

template <detail::OpName kOp>
Var extremum(const Var& x_, const Axes& axes, bool keepdim, bool largest) {
  const auto [x] = detail::autocast<kOp>(x_);
  const ReducedShape r = reduce_some(kOp.text, x, axes, keepdim);
  Tensor y = empty(r.result, x.dtype(), x.device()), position = empty(r.result, DType::i64, x.device());
  TAP_DISPATCH(extremum_forward, x.value(), r.kept, largest, y, position);
  return record(
      kOp.text, y,
      [y = save(y), position, kept = r.kept](const Tensor& dy, Grad dx) {
        TAP_DISPATCH(extremum_backward, dy, y(), position, kept, dx);
      },
      x);
}

template <detail::OpName kOp>
Var spread(const Var& x_, const Axes& axes, bool keepdim, double correction, bool root) {
  const auto [x] = detail::autocast<kOp>(x_);
  const ReducedShape r = reduce_some(kOp.text, x, axes, keepdim);
  const std::int64_t n = slice_length(x, r.kept);
  TAP_CHECK(r.kept.numel() == 0 || static_cast<double>(n) > correction, kOp.view(),
            ": needs more elements than the correction ", correction, ", but x ", x.shape(), " has ", n,
            " for each result; give correction = 0 for the biased form");
  Tensor y = empty(r.result, x.dtype(), x.device());
  Tensor mean = empty(r.result, accumulate_dtype(x.dtype()), x.device());
  TAP_DISPATCH(variance_forward, x.value(), r.kept, correction, root, y, mean);
  return record(
      kOp.text, y,
      [x = save(x), mean, y = save(root ? y : Tensor()), kept = r.kept, correction](const Tensor& dy, Grad dx) {
        TAP_DISPATCH(variance_backward, dy, x(), mean, y(), kept, correction, dx);
      },
      x);
}

}  // namespace

Var sum(const Var& x_, Axes axes, bool keepdim) {
  const auto [x] = detail::autocast<"sum">(x_);
  return scaled_sum("sum", x, reduce_shape("sum", x.shape(), axes, keepdim), 1);
}

Var mean(const Var& x_, Axes axes, bool keepdim) {
  const auto [x] = detail::autocast<"mean">(x_);
  const ReducedShape r = reduce_some("mean", x, axes, keepdim);
  const std::int64_t n = slice_length(x, r.kept);
  return scaled_sum("mean", x, r, n ? 1 / static_cast<double>(n) : 1);
}

Var max(const Var& x, Axes axes, bool keepdim) { return extremum<"max">(x, axes, keepdim, true); }
Var min(const Var& x, Axes axes, bool keepdim) { return extremum<"min">(x, axes, keepdim, false); }

Var prod(const Var& x_, Axes axes, bool keepdim) {
  const auto [x] = detail::autocast<"prod">(x_);
  const ReducedShape r = reduce_shape("prod", x.shape(), axes, keepdim);
  Tensor y = empty(r.result, x.dtype(), x.device());
  TAP_DISPATCH(prod_forward, x.value(), r.kept, y);
  return record(
      "prod", y,
      [x = save(x), kept = r.kept](const Tensor& dy, Grad dx) { TAP_DISPATCH(prod_backward, dy, x(), kept, dx); }, x);
}

Var var(const Var& x, Axes axes, bool keepdim, double correction) {
  return spread<"var">(x, axes, keepdim, correction, false);
}
Var stddev(const Var& x, Axes axes, bool keepdim, double correction) {
  return spread<"stddev">(x, axes, keepdim, correction, true);
}

Var norm(const Var& x_, Axes axes, bool keepdim) {
  const auto [x] = detail::autocast<"norm">(x_);
  const ReducedShape r = reduce_shape("norm", x.shape(), axes, keepdim);
  Tensor y = empty(r.result, x.dtype(), x.device());
  TAP_DISPATCH(norm_forward, x.value(), r.kept, y);
  return record(
      "norm", y,
      [x = save(x), y = save(y), kept = r.kept](const Tensor& dy, Grad dx) {
        TAP_DISPATCH(norm_backward, dy, x(), y(), kept, dx);
      },
      x);
}

Var logsumexp(const Var& x_, Axes axes, bool keepdim) {
  const auto [x] = detail::autocast<"logsumexp">(x_);
  const ReducedShape r = reduce_shape("logsumexp", x.shape(), axes, keepdim);
  Tensor y = empty(r.result, x.dtype(), x.device());
  Tensor shift = empty(r.result, accumulate_dtype(x.dtype()), x.device()), factor = empty_like(shift);
  TAP_DISPATCH(logsumexp_forward, x.value(), r.kept, y, shift, factor);
  return record(
      "logsumexp", y,
      [x = save(x), shift, factor, kept = r.kept](const Tensor& dy, Grad dx) {
        TAP_DISPATCH(logsumexp_backward, dy, x(), shift, factor, kept, dx);
      },
      x);
}

Var cumsum(const Var& x_, int axis) {
  const auto [x] = detail::autocast<"cumsum">(x_);
  axis = x.shape().axis("cumsum", axis);
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(cumsum_forward, x.value(), axis, y);
  return record(
      "cumsum", y, [axis](const Tensor& dy, Grad dx) { TAP_DISPATCH(cumsum_backward, dy, axis, dx); }, x);
}

}  // namespace tapestry
