// Joining tensors along an axis and taking them apart. Seen as a matrix (the axes before it are the rows), a part is a
// range of columns, so every part is one strided copy.
#include <algorithm>

#include "autograd/autocast.h"
#include "autograd/ops/strided.h"

namespace tapestry {

namespace {

// Columns from `begin` on of a matrix with `width` columns.
StridedLayout columns(std::int64_t begin, std::int64_t width) { return {begin, {width, 1}}; }

// y, already of the right shape, gets the parts one after the other, from `axis` on.
Var join(const char* op, std::span<const Var> parts, int axis, Tensor y) {
  const std::int64_t rows = extent_before(y.shape(), axis), width = extent_from(y.shape(), axis);
  Tensor starts = empty({static_cast<std::int64_t>(parts.size())}, DType::i64);
  std::int64_t* start = starts.mutable_data<std::int64_t>();
  std::int64_t at = 0;
  for (const Var& part : parts) {
    const Shape block{rows, extent_from(part.shape(), axis)};
    TAP_DISPATCH(strided_copy, part.value(), packed(block), block, columns(at, width), y);
    *start++ = at;
    at += block[1];
  }
  return record(
      op, y,
      [axis, rows, width, starts](const Tensor& dy, std::span<const Grad> grads) {
        const std::int64_t* begin = starts.data<std::int64_t>();
        for (std::size_t i = 0; i < grads.size(); ++i) {
          if (!grads[i]) continue;
          const Shape block{rows, extent_from(grads[i].shape(), axis)};
          copy_to_grad(dy, columns(begin[i], width), block, grads[i]);
        }
      },
      parts);
}

static_assert(policy_of("concat") == CastPolicy::widest && policy_of("stack") == CastPolicy::widest);

// Calls join(parts), all cast to the widest of their types where that is f32 at most.
template <class Join>
Var in_one_dtype(std::span<const Var> parts, const Join& join) {
  DType dtype = parts[0].dtype();
  bool mixed = false;
  for (const Var& part : parts) {
    mixed |= part.dtype() != dtype;
    dtype = promote(dtype, part.dtype());
  }
  if (!mixed || dtype == DType::f64) return join(parts);
  constexpr std::size_t kInline = 16;
  std::array<Var, kInline> few;
  std::vector<Var> many(parts.size() > kInline ? parts.size() : 0);
  const std::span<Var> converted(many.empty() ? few.data() : many.data(), parts.size());
  std::transform(parts.begin(), parts.end(), converted.begin(), [&](const Var& part) { return cast(part, dtype); });
  return join(converted);
}

Var concat_alike(std::span<const Var> parts, int axis) {
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
  return join("concat", parts, a, empty(first.shape().with(a, length), first.dtype(), first.device()));
}

Var stack_alike(std::span<const Var> parts, int axis) {
  const Var& first = parts[0];
  const int rank = first.shape().rank(), a = axis < 0 ? axis + rank + 1 : axis;
  TAP_CHECK(0 <= a && a <= rank, "stack: the new axis must be in [", -rank - 1, ", ", rank, "] for parts of shape ",
            first.shape(), ", not ", axis);
  for (const Var& part : parts)
    TAP_CHECK(part.dtype() == first.dtype() && part.shape() == first.shape(),
              "stack: parts must have one dtype and shape, not ", first.dtype(), " ", first.shape(), " and ",
              part.dtype(), " ", part.shape(), "; concat joins along an axis that is there");
  const Shape shape = insert_axis("stack", first.shape(), a, static_cast<std::int64_t>(parts.size()));
  return join("stack", parts, a, empty(shape, first.dtype(), first.device()));
}

}  // namespace

Var concat(std::span<const Var> parts, int axis) {
  TAP_CHECK(!parts.empty(), "concat: needs at least one part");
  return in_one_dtype(parts, [axis](std::span<const Var> alike) { return concat_alike(alike, axis); });
}

Var stack(std::span<const Var> parts, int axis) {
  TAP_CHECK(!parts.empty(), "stack: needs at least one part");
  return in_one_dtype(parts, [axis](std::span<const Var> alike) { return stack_alike(alike, axis); });
}

void detail::split(const char* op, const Var& x, int axis, std::span<const std::int64_t> sizes,
                   std::span<Tensor> values, std::span<Var> parts) {
  const Shape& s = x.shape();
  const int a = s.axis(op, axis);
  const auto count = static_cast<std::int64_t>(parts.size());
  const std::int64_t rows = extent_before(s, a), width = extent_from(s, a), inner = extent_from(s, a + 1);
  TAP_CHECK(!sizes.empty() || s[a] % count == 0, op, ": axis ", axis, " of ", s, " does not divide into ", count,
            " equal parts; split takes parts of any sizes");
  std::int64_t total = sizes.empty() ? s[a] : 0;
  for (const std::int64_t size : sizes) {
    TAP_CHECK(size >= 0, op, ": a part cannot have ", size, " elements");
    total += size;
  }
  TAP_CHECK(total == s[a], op, ": the parts have ", total, " elements together, but axis ", axis, " of ", s, " has ",
            s[a]);
  Tensor starts = empty({count}, DType::i64);
  std::int64_t* start = starts.mutable_data<std::int64_t>();
  std::int64_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t size = sizes.empty() ? s[a] / count : sizes[i];
    values[i] = empty(s.with(a, size), x.dtype(), x.device());
    const Shape block{rows, size * inner};
    TAP_DISPATCH(strided_copy, x.value(), columns(at, width), block, packed(block), values[i]);
    start[i] = at;
    at += block[1];
  }
  record(
      op, values,
      [a, rows, width, starts](std::span<const Tensor> dys, Grad dx) {
        const bool add = dx.claim();
        const bool complete = std::all_of(dys.begin(), dys.end(), [](const Tensor& dy) { return bool(dy); });
        if (!add && !complete) dx.tensor().fill(0);
        const std::int64_t* begin = starts.data<std::int64_t>();
        for (std::size_t i = 0; i < dys.size(); ++i) {
          if (!dys[i]) continue;
          const Shape block{rows, extent_from(dys[i].shape(), a)};
          strided_put(add, dys[i], packed(block), block, columns(begin[i], width), dx.tensor());
        }
      },
      x, parts.data());
}

std::array<Var, 2> split(const Var& x, int axis, std::int64_t at) {
  const std::int64_t extent = x.shape()[x.shape().axis("split", axis)];
  TAP_CHECK(0 <= at && at <= extent, "split: ", at, " is not a position on axis ", axis, " of ", x.shape());
  return split(x, axis, {at, extent - at});
}

}  // namespace tapestry
