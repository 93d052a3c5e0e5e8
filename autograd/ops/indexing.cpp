#include "core/kernels/indexing.h"

#include "autograd/ops/operands.h"
#include "autograd/ops/strided.h"

namespace tapestry {

namespace {

// For gather and scatter_add: the chosen have the shape of the index, which lies within x's but for the axis.
IndexLayout element_layout(const char* op, const Shape& x, int axis, const Tensor& index) {
  const Shape& s = index.shape();
  const int a = x.axis(op, axis);
  bool fits = s.rank() == x.rank(), partial = false;
  for (int i = 0; fits && i < x.rank(); ++i) {
    fits = i == a || s[i] <= x[i];
    partial |= i != a && s[i] < x[i];
  }
  TAP_CHECK(fits, op, ": the index must have the rank of x ", x, " and be no longer in any axis but ", axis, ", not ",
            s, "; index_select takes one index for whole rows");
  IndexLayout layout{extent_before(s, a), x[a], s[a], extent_from(s, a + 1), true};
  if (partial) layout.covered = s.with(a, 1), layout.x = x, layout.axis = a;
  return layout;
}

void check_index_dtype(const char* op, const Tensor& index) {
  TAP_CHECK(index && (index.dtype() == DType::i32 || index.dtype() == DType::i64), op,
            ": the index must be i32 or i64, not ", index ? text_of(index.dtype()) : std::string("an empty Tensor"));
}

Var gathered(const char* op, const Var& x, const Tensor& index, const IndexLayout& layout, Tensor y) {
  TAP_DISPATCH(gather_forward, op, x.value(), index, layout, y);
  return record(
      op, y,
      [op, index = save(index), layout](const Tensor& dy, Grad dx) {
        TAP_DISPATCH(gather_backward, op, dy, index(), layout, dx);
      },
      x);
}

}  // namespace

Var gather(const Var& x, int axis, const Tensor& index) {
  check_index_dtype("gather", index);
  const IndexLayout layout = element_layout("gather", x.shape(), axis, index);
  return gathered("gather", x, index, layout, empty(index.shape(), x.dtype(), x.device()));
}

Var index_select(const Var& x, int axis, const Tensor& index) {
  check_index_dtype("index_select", index);
  const int a = x.shape().axis("index_select", axis);
  TAP_CHECK(index.shape().rank() == 1, "index_select: the index must be [n], not ", index.shape(),
            "; gather takes one for every element");
  const std::int64_t m = index.numel();
  const IndexLayout layout{extent_before(x.shape(), a), x.shape()[a], m, extent_from(x.shape(), a + 1)};
  return gathered("index_select", x, index, layout, empty(x.shape().with(a, m), x.dtype(), x.device()));
}

Var scatter_add(const Var& x_, int axis, const Tensor& index, const Var& source_) {
  const auto [x, source] = detail::autocast<"scatter_add">(x_, source_);
  check_index_dtype("scatter_add", index);
  const IndexLayout layout = element_layout("scatter_add", x.shape(), axis, index);
  TAP_CHECK(source.shape() == index.shape() && source.dtype() == x.dtype(), "scatter_add: source must be ", x.dtype(),
            " of the index's shape ", index.shape(), ", not ", source.dtype(), " ", source.shape(),
            "; slice cuts it to size");
  Tensor y = x.value().clone();
  TAP_DISPATCH(scatter_add_forward, "scatter_add", source.value(), index, layout, y);
  return record(
      "scatter_add", y,
      [index = save(index), layout](const Tensor& dy, Grad dx, Grad dsource) {
        if (dx) dx.pass(dy);
        TAP_DISPATCH(scatter_add_backward, "scatter_add", dy, index(), layout, dsource);
      },
      x, source);
}

Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype) {
  check_index_dtype("one_hot", ids);
  TAP_CHECK(classes >= 0, "one_hot: the number of classes must not be negative, but is ", classes);
  Tensor y = empty(insert_axis("one_hot", ids.shape(), ids.shape().rank(), classes), dtype, ids.device());
  TAP_DISPATCH(one_hot, ids, y);
  return y;
}

}  // namespace tapestry
