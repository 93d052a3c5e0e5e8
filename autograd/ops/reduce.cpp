#include "core/kernels/reduce.h"

#include "autograd/ops.h"

namespace tapestry {

namespace {

struct Reduction {
  Shape kept, result;  // with the reduced axes as 1, and as the caller sees it
};

Reduction plan(const char* op, const Shape& shape, const Axes& axes, bool keepdim) {
  std::array<bool, Shape::kMaxRank> reduced{};
  for (int axis : axes) {
    bool& flag = reduced[shape.axis(op, axis)];
    TAP_CHECK(!flag, op, ": axis ", axis, " is given twice");
    flag = true;
  }
  if (axes.size() == 0) reduced.fill(true);
  std::array<std::int64_t, Shape::kMaxRank> kept{}, result{};
  std::size_t rank = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    kept[i] = reduced[i] ? 1 : shape[i];
    if (!reduced[i] || keepdim) result[rank++] = kept[i];
  }
  return {Shape(std::span(kept.data(), static_cast<std::size_t>(shape.rank()))), Shape(std::span(result.data(), rank))};
}

Var scaled_sum(const char* op, const Var& x, const Reduction& r, double scale) {
  Tensor y = empty(r.result, x.dtype(), x.device());
  TAP_DISPATCH(sum_forward, x.value(), r.kept, scale, y);
  return record(
      op, y, [kept = r.kept, scale](const Tensor& dy, Grad dx) { TAP_DISPATCH(sum_backward, dy, kept, scale, dx); }, x);
}

}  // namespace

Var sum(const Var& x, Axes axes, bool keepdim) {
  return scaled_sum("sum", x, plan("sum", x.shape(), axes, keepdim), 1);
}

Var mean(const Var& x, Axes axes, bool keepdim) {
  const Reduction r = plan("mean", x.shape(), axes, keepdim);
  TAP_CHECK(x.numel() > 0 || r.kept.numel() == 0, "mean: needs at least one element to average, x is ", x.shape());
  const double count = r.kept.numel() ? static_cast<double>(x.numel() / r.kept.numel()) : 1;
  return scaled_sum("mean", x, r, 1 / count);
}

}  // namespace tapestry
