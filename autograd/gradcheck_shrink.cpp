// The inputs of a row: drawn from a seed, and made smaller while a fault stays.
#include <algorithm>
#include <functional>
#include <set>

#include "autograd/gradcheck_case.h"
#include "core/random.h"

namespace tapestry {
namespace {

// The elements of x at the lowest indices. Row-major order is kept, so one walk over x is enough.
Tensor leading_part(const Tensor& x, const Shape& shape) {
  const auto strides = x.shape().strides();
  Tensor part = empty(shape, x.dtype());
  double* to = part.mutable_data<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    bool inside = true;
    for (int axis = 0; axis < shape.rank(); ++axis)
      inside &= i / strides[static_cast<std::size_t>(axis)] % x.shape()[axis] < shape[axis];
    if (inside) *to++ = x.at(i);
  }
  return part;
}

// The same extent is halved in all inputs, so that shapes which belong together still do; on every axis or, as where a
// layer fixes the others, on the first one only.
GradcheckCase with_extent_halved(const GradcheckCase& c, std::int64_t extent, bool first_axis_only) {
  GradcheckCase result = c;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    std::vector<std::int64_t> dims(c.inputs[i].shape().dims().begin(), c.inputs[i].shape().dims().end());
    const auto end = first_axis_only && !dims.empty() ? dims.begin() + 1 : dims.end();
    std::replace(dims.begin(), end, extent, extent / 2);
    const bool drawn = i < c.drawn.size() && c.drawn[i];
    result.inputs[i] = drawn ? draw_input(Shape(dims), c.gradcheck.seed, i) : leading_part(c.inputs[i], Shape(dims));
  }
  return result;
}

std::int64_t elements(const GradcheckCase& c) {
  std::int64_t total = 0;
  for (const Tensor& t : c.inputs) total += t.numel();
  return total;
}

}  // namespace

Tensor draw_input(const Shape& shape, std::uint64_t seed, std::uint64_t index) {
  Tensor t = empty(shape, DType::f64);
  fill_normal(t, 0, 1, RandomKey{seed, index});
  return t;
}

void reseed(GradcheckCase& c, std::uint64_t seed) {
  c.gradcheck.seed = seed;
  for (std::size_t i = 0; i < c.drawn.size(); ++i)
    if (c.drawn[i]) c.inputs[i] = draw_input(c.inputs[i].shape(), seed, i);
}

GradcheckCase shrink(const GradcheckCase& original) {
  const GradcheckFault fault = gradcheck(original).fault;
  if (fault == GradcheckFault::none || fault == GradcheckFault::error) return original;
  GradcheckCase smallest = original;
  auto try_smaller = [&] {
    std::set<std::int64_t, std::greater<>> extents;
    for (const Tensor& t : smallest.inputs)
      for (std::int64_t extent : t.shape().dims())
        if (extent > 1) extents.insert(extent);
    for (const std::int64_t extent : extents)
      for (const bool first_axis_only : {false, true}) {
        GradcheckCase trial = with_extent_halved(smallest, extent, first_axis_only);
        if (elements(trial) == elements(smallest) || gradcheck(trial).fault != fault) continue;
        smallest = std::move(trial);
        return true;
      }
    return false;
  };
  while (try_smaller()) {}
  return smallest;
}

}  // namespace tapestry
