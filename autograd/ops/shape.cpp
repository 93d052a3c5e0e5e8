// Ops that only move elements: reshape is a view, the others are one strided copy.
#include <algorithm>

#include "autograd/ops/strided.h"
#include "core/kernels/pointwise.h"
#include "core/kernels/strided_walk.h"

namespace tapestry {

namespace {

// One extent of -1 stands for what is left over.
Shape resolve(const Shape& from, std::span<const std::int64_t> dims) {
  std::array<std::int64_t, Shape::kMaxRank> result{};
  TAP_CHECK(dims.size() <= Shape::kMaxRank, "reshape: rank must be at most ", Shape::kMaxRank, ", not ", dims.size());
  std::int64_t known = 1;
  int open = -1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    result[i] = dims[i];
    if (dims[i] != -1) {
      known *= dims[i];
      continue;
    }
    TAP_CHECK(open < 0, "reshape: only one extent may be -1");
    open = static_cast<int>(i);
  }
  if (open >= 0) {
    TAP_CHECK(known > 0 && from.numel() % known == 0, "reshape: the extents other than -1 multiply to ", known,
              ", which does not divide the ", from.numel(), " elements of ", from);
    result[open] = from.numel() / known;
  }
  return Shape(std::span<const std::int64_t>(result.data(), dims.size()));
}

}  // namespace

Var reshape(const Var& x, const Shape& shape) {
  const Tensor y = x.value().reshape(shape);
  return record(
      "reshape", y, [](const Tensor& dy, Grad dx) { dx.pass(dy.reshape(dx.shape())); }, x);
}

Var reshape(const Var& x, std::initializer_list<std::int64_t> extents) {
  return reshape(x, resolve(x.shape(), std::span(extents.begin(), extents.size())));
}

Var permute(const Var& x, Axes order) {
  const Shape& s = x.shape();
  TAP_CHECK(static_cast<int>(order.size()) == s.rank(), "permute: the order must name all ", s.rank(), " axes of ", s,
            ", but names ", order.size());
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::array<bool, Shape::kMaxRank> seen{};
  StridedLayout moved;  // x's elements in the order of the result
  StridedLayout back;   // the result's elements in the order of x
  const auto strides = s.strides();
  for (int i = 0; i < s.rank(); ++i) {
    const int axis = s.axis("permute", order[i]);
    TAP_CHECK(!std::exchange(seen[axis], true), "permute: axis ", order[i], " is named twice");
    dims[i] = s[axis];
    moved.strides[i] = strides[axis];
    order[i] = axis;
  }
  Tensor y = empty(Shape(std::span<const std::int64_t>(dims.data(), order.size())), x.dtype(), x.device());
  const auto y_strides = y.shape().strides();
  for (int i = 0; i < s.rank(); ++i) back.strides[order[i]] = y_strides[i];
  TAP_DISPATCH(strided_copy, x.value(), moved, y.shape(), packed(y.shape()), y);
  return record(
      "permute", y, [back](const Tensor& dy, Grad dx) { copy_to_grad(dy, back, dx.shape(), dx); }, x);
}

Var transpose(const Var& x, int axis_a, int axis_b) {
  constexpr int kIdentity[Shape::kMaxRank] = {0, 1, 2, 3, 4, 5};
  Axes order(std::span(kIdentity, static_cast<std::size_t>(x.shape().rank())));
  std::swap(order[x.shape().axis("transpose", axis_a)], order[x.shape().axis("transpose", axis_b)]);
  return permute(x, order);
}

Var slice(const Var& x, int axis, std::int64_t begin, std::int64_t end, std::int64_t step) {
  const Shape& s = x.shape();
  const int a = s.axis("slice", axis);
  TAP_CHECK(step != 0, "slice: the step must not be 0; 1 takes every element, -1 every element from the back");
  TAP_CHECK(step > 0 ? 0 <= begin && begin <= end && end <= s[a]
            : -1 <= end && end <= begin &&
                    begin<s[a], "slice: from ", begin, " to ", end, " in steps of ", step, " is not a range of axis ",
                          axis, " of ", s, step> 0
                ? ""
                : "; with a negative step begin is the last element and end, which may be -1, lies before it");
  const std::int64_t count = step > 0 ? (end - begin + step - 1) / step : (begin - end - step - 1) / -step;
  StridedLayout part = packed(s);
  if (count > 0) part.offset = begin * part.strides[a];
  part.strides[a] *= step;
  Tensor y = empty(s.with(a, count), x.dtype(), x.device());
  TAP_DISPATCH(strided_copy, x.value(), part, y.shape(), packed(y.shape()), y);
  return record(
      "slice", y, [part](const Tensor& dy, Grad dx) { copy_into_part(dy, part, dx); }, x);
}

Var flip(const Var& x, Axes axes) {
  const Shape& s = x.shape();
  StridedLayout backwards = packed(s);
  for (int axis : axes) {
    const int a = s.axis("flip", axis);
    TAP_CHECK(backwards.strides[a] >= 0, "flip: axis ", axis, " is named twice");
    backwards.offset += (s[a] - 1) * backwards.strides[a];
    backwards.strides[a] *= -1;
  }
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(strided_copy, x.value(), backwards, s, packed(s), y);
  return record(
      "flip", y, [backwards](const Tensor& dy, Grad dx) { copy_to_grad(dy, backwards, dx.shape(), dx); }, x);
}

Var expand(const Var& x, const Shape& shape) {
  const Shape& s = x.shape();
  bool fits = s.rank() <= shape.rank();
  for (int i = 1; fits && i <= s.rank(); ++i) fits = s[-i] == shape[-i] || s[-i] == 1;
  TAP_CHECK(fits, "expand: ", s, " does not broadcast to ", shape,
            "; aligned at the last axis, every extent must be equal or 1");
  Tensor y = empty(shape, x.dtype(), x.device());
  TAP_DISPATCH(strided_copy, x.value(), (StridedLayout{0, broadcast_strides(s, shape)}), shape, packed(shape), y);
  return record(
      "expand", y,
      [s](const Tensor& dy, Grad dx) {  // dx is what add gives an operand that it broadcast
        TAP_DISPATCH(add_backward, dy, Tensor(), Tensor(), s, dy.shape(), dx, Grad());
      },
      x);
}

Var pad(const Var& x, int axis, std::int64_t before, std::int64_t after, double value) {
  const Shape& s = x.shape();
  const int a = s.axis("pad", axis);
  TAP_CHECK(before >= 0 && after >= 0, "pad: before and after must not be negative, but are ", before, " and ", after,
            "; slice makes an axis shorter");
  Tensor y = full(s.with(a, before + s[a] + after), value, x.dtype(), x.device());
  StridedLayout part = packed(y.shape());
  part.offset = before * part.strides[a];
  TAP_DISPATCH(strided_copy, x.value(), packed(s), s, part, y);
  return record(
      "pad", y, [part](const Tensor& dy, Grad dx) { copy_to_grad(dy, part, dx.shape(), dx); }, x);
}

Var repeat_interleave(const Var& x, std::int64_t repeats, int axis) {
  const Shape& s = x.shape();
  const int a = s.axis("repeat_interleave", axis);
  TAP_CHECK(repeats >= 0, "repeat_interleave: the number of repeats must not be negative, but is ", repeats);
  const Shape blocks{extent_before(s, a + 1), extent_from(s, a + 1)};  // each block appears `repeats` times
  const Shape repeated{blocks[0], repeats, blocks[1]};
  Tensor y = empty(s.with(a, s[a] * repeats), x.dtype(), x.device());
  TAP_DISPATCH(strided_copy, x.value(), (StridedLayout{0, {blocks[1], 0, 1}}), repeated, packed(repeated), y);
  return record(
      "repeat_interleave", y,
      [blocks, repeats](const Tensor& dy, Grad dx) {
        bool add = dx.claim();
        if (!add && repeats == 0) dx.tensor().fill(0);
        for (std::int64_t i = 0; i < repeats; ++i, add = true)
          strided_put(add, dy, {i * blocks[1], {repeats * blocks[1], 1}}, blocks, packed(blocks), dx.tensor());
      },
      x);
}

}  // namespace tapestry
