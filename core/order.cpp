#include "core/order.h"

#include "core/kernels/extremum.h"
#include "core/kernels/sort.h"

namespace tapestry {

namespace {

Tensor position_of(const char* op, const Tensor& x, const Axes& axes, bool keepdim, bool largest) {
  const ReducedShape r = reduce_shape(op, x.shape(), axes, keepdim);
  TAP_CHECK(x.numel() > 0 || r.kept.numel() == 0, op, ": needs at least one element for each result, x is ", x.shape());
  Tensor y = empty(r.result, x.dtype(), x.device()), position = empty(r.result, DType::i64, x.device());
  TAP_DISPATCH(extremum_forward, x, r.kept, largest, y, position);
  return position;
}

Sorted first_sorted(const Tensor& x, int axis, std::int64_t k, bool descending) {
  const Shape shape = x.shape().with(axis, k);
  Sorted sorted{empty(shape, x.dtype(), x.device()), empty(shape, DType::i64, x.device())};
  TAP_DISPATCH(sort_forward, x, axis, k, descending, sorted.values, sorted.indices);
  return sorted;
}

}  // namespace

Tensor argmax(const Tensor& x, const Axes& axes, bool keepdim) { return position_of("argmax", x, axes, keepdim, true); }
Tensor argmin(const Tensor& x, const Axes& axes, bool keepdim) {
  return position_of("argmin", x, axes, keepdim, false);
}

Sorted sort(const Tensor& x, int axis, bool descending) {
  axis = x.shape().axis("sort", axis);
  return first_sorted(x, axis, x.shape()[axis], descending);
}

Sorted topk(const Tensor& x, std::int64_t k, int axis, bool largest) {
  axis = x.shape().axis("topk", axis);
  TAP_CHECK(k >= 0 && k <= x.shape()[axis], "topk: k must be in [0, ", x.shape()[axis], "], the extent of axis ", axis,
            " of ", x.shape(), ", not ", k);
  return first_sorted(x, axis, k, largest);
}

}  // namespace tapestry
