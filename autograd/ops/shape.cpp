// Ops that only move elements: reshape is a view, the others are one strided copy.
#include <algorithm>

#include "autograd/ops.h"
#include "core/kernels/strided_copy.h"

namespace tapestry {

namespace {

StridedLayout packed(const Shape& shape) { return {0, shape.strides()}; }

// The part [begin, ...) of `whole` along one axis, as elements of the whole tensor.
StridedLayout part_of(const Shape& whole, int axis, std::int64_t begin) {
  StridedLayout layout = packed(whole);
  layout.offset = begin * layout.strides[axis];
  return layout;
}

// dx over `shape` gets dy, which lies as `from` within its own tensor; every element of dx is covered.
void copy_to_grad(const Tensor& dy, const StridedLayout& from, Grad dx) {
  const StridedLayout to = packed(dx.shape());
  if (dx.claim()) {
    TAP_DISPATCH(strided_add, dy, from, dx.shape(), to, dx.tensor());
  } else {
    TAP_DISPATCH(strided_copy, dy, from, dx.shape(), to, dx.tensor());
  }
}

// The part of dx that `to` covers gets dy, the rest gets zeros.
void copy_into_part(const Tensor& dy, const StridedLayout& to, Grad dx) {
  const StridedLayout from = packed(dy.shape());
  if (!dx.claim()) dx.tensor().fill(0);
  TAP_DISPATCH(strided_add, dy, from, dy.shape(), to, dx.tensor());
}

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
      "permute", y, [back](const Tensor& dy, Grad dx) { copy_to_grad(dy, back, dx); }, x);
}

Var transpose(const Var& x, int axis_a, int axis_b) {
  constexpr int kIdentity[Shape::kMaxRank] = {0, 1, 2, 3, 4, 5};
  Axes order(std::span(kIdentity, static_cast<std::size_t>(x.shape().rank())));
  std::swap(order[x.shape().axis("transpose", axis_a)], order[x.shape().axis("transpose", axis_b)]);
  return permute(x, order);
}

Var slice(const Var& x, int axis, std::int64_t begin, std::int64_t end) {
  const int a = x.shape().axis("slice", axis);
  TAP_CHECK(0 <= begin && begin <= end && end <= x.shape()[a], "slice: [", begin, ", ", end,
            ") is not a range of axis ", axis, " of ", x.shape());
  Tensor y = empty(x.shape().with(a, end - begin), x.dtype(), x.device());
  const StridedLayout part = part_of(x.shape(), a, begin);
  TAP_DISPATCH(strided_copy, x.value(), part, y.shape(), packed(y.shape()), y);
  return record(
      "slice", y, [part](const Tensor& dy, Grad dx) { copy_into_part(dy, part, dx); }, x);
}

Var concat(std::span<const Var> parts, int axis) {
  TAP_CHECK(!parts.empty(), "concat: needs at least one part");
  const Var& first = parts[0];
  const int a = first.shape().axis("concat", axis);
  std::int64_t length = 0;
  for (const Var& part : parts) {
    TAP_CHECK(part.dtype() == first.dtype() && part.shape().rank() == first.shape().rank() &&
                  part.shape().with(a, 0) == first.shape().with(a, 0),
              "concat: parts must agree in dtype and in every axis but ", axis, ", not ", first.dtype(), " ",
              first.shape(), " and ", part.dtype(), " ", part.shape());
    length += part.shape()[a];
  }
  Tensor y = empty(first.shape().with(a, length), first.dtype(), first.device());
  Tensor starts = empty({static_cast<std::int64_t>(parts.size())}, DType::i64);
  std::int64_t* start = starts.mutable_data<std::int64_t>();
  std::int64_t at = 0;
  for (const Var& part : parts) {
    *start++ = at;
    TAP_DISPATCH(strided_copy, part.value(), packed(part.shape()), part.shape(), part_of(y.shape(), a, at), y);
    at += part.shape()[a];
  }
  return record(
      "concat", y,
      [a, starts](const Tensor& dy, std::span<const Grad> grads) {
        for (std::size_t i = 0; i < grads.size(); ++i)
          if (grads[i]) copy_to_grad(dy, part_of(dy.shape(), a, starts.data<std::int64_t>()[i]), grads[i]);
      },
      parts);
}

std::array<Var, 2> split(const Var& x, int axis, std::int64_t at) {
  const int a = x.shape().axis("split", axis);
  TAP_CHECK(0 <= at && at <= x.shape()[a], "split: ", at, " is not a position on axis ", axis, " of ", x.shape());
  const StridedLayout parts[2] = {part_of(x.shape(), a, 0), part_of(x.shape(), a, at)};
  std::array<Tensor, 2> ys = {empty(x.shape().with(a, at), x.dtype(), x.device()),
                              empty(x.shape().with(a, x.shape()[a] - at), x.dtype(), x.device())};
  for (int i = 0; i < 2; ++i)
    TAP_DISPATCH(strided_copy, x.value(), parts[i], ys[i].shape(), packed(ys[i].shape()), ys[i]);
  return record(
      "split", ys,
      [first = parts[0], second = parts[1]](const Tensor& dy0, const Tensor& dy1, Grad dx) {
        const bool add = dx.claim();
        if (!add && !(dy0 && dy1)) dx.tensor().fill(0);
        const auto put = [&](const Tensor& dy, const StridedLayout& to) {
          if (!dy) return;
          const StridedLayout from = packed(dy.shape());
          if (add)
            TAP_DISPATCH(strided_add, dy, from, dy.shape(), to, dx.tensor());
          else
            TAP_DISPATCH(strided_copy, dy, from, dy.shape(), to, dx.tensor());
        };
        put(dy0, first);
        put(dy1, second);
      },
      x);
}

}  // namespace tapestry
