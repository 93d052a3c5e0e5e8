#include "core/shape.h"

#include <algorithm>

namespace tapestry {

Shape::Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  TAP_CHECK(dims.size() <= kMaxRank, "shape: rank must be at most ", kMaxRank, ", not ", dims.size());
  std::copy(dims.begin(), dims.end(), dims_.begin());
  bool overflow = false;
  for (std::int64_t d : dims) {
    TAP_CHECK(d >= 0, "shape: extents must not be negative, but ", to_text(*this), " has ", d);
    overflow |= __builtin_mul_overflow(numel_, d, &numel_);
  }
  if (overflow) {
    // An overflow on the way is fine when a later extent is 0.
    TAP_CHECK(std::find(dims.begin(), dims.end(), 0) != dims.end(), "shape: ", to_text(*this),
              " has more elements than 64 bits can count");
    numel_ = 0;
  }
}

std::int64_t Shape::rows() const {
  std::int64_t n = 1;
  for (int i = 0; i + 1 < rank_; ++i) n *= dims_[i];
  return n;
}

std::array<std::int64_t, Shape::kMaxRank> Shape::strides() const {
  std::array<std::int64_t, kMaxRank> result{};
  std::int64_t step = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    result[i] = step;
    step *= dims_[i];
  }
  return result;
}

int Shape::axis(std::string_view op, int axis) const {
  const int result = axis < 0 ? axis + rank_ : axis;
  TAP_CHECK(result >= 0 && result < rank_, op, ": axis ", axis, " is out of range for shape ", *this);
  return result;
}

Shape Shape::with(int axis, std::int64_t extent) const {
  auto dims = dims_;
  dims[this->axis("shape", axis)] = extent;
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank_)));
}

std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Shape broadcast(std::string_view op, const Shape& a, const Shape& b) {
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  const int rank = std::max(a.rank(), b.rank());
  for (int i = 1; i <= rank; ++i) {
    const std::int64_t x = i <= a.rank() ? a[-i] : 1, y = i <= b.rank() ? b[-i] : 1;
    TAP_CHECK(x == y || x == 1 || y == 1, op, ": shapes ", a, " and ", b, " do not broadcast: axis -", i, " is ", x,
              " and ", y, "; they must be equal or one of them 1");
    dims[rank - i] = x == 1 ? y : x;
  }
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank)));
}

ReducedShape reduce_shape(std::string_view op, const Shape& shape, const Axes& axes, bool keepdim) {
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

std::string divisors(std::int64_t n) {
  std::string text;
  int shown = 0;
  for (std::int64_t d = 1; d <= n; ++d) {
    if (n % d != 0) continue;
    if (shown++ == 5) return text + ", ...";
    text += text_of(d == 1 ? "" : ", ", d);
  }
  return text;
}

}  // namespace tapestry
