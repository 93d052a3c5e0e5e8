#include "layers/convolution.h"

#include <cmath>

#include "layers/init.h"

namespace tapestry {

namespace {

void check_channels(const char* layer, std::int64_t in, std::int64_t out, std::int64_t groups) {
  TAP_CHECK(in > 0 && out > 0, layer, ": in and out must be at least 1, not ", in, " and ", out);
  for (const std::int64_t channels : {in, out})
    TAP_CHECK(groups > 0 && channels % groups == 0, layer, ": ", groups, " groups do not divide ", channels,
              " channels; use one of ", divisors(channels));
}

void check_axis(const char* layer, const WindowAxis& axis) {
  TAP_CHECK(axis.size >= 1 && axis.stride >= 1 && axis.dilation >= 1 && axis.padding >= 0, layer,
            ": size, stride and dilation must be at least 1 and padding at least 0, not ", axis.size, ", ", axis.stride,
            ", ", axis.dilation, " and ", axis.padding);
}

Shape weight_shape(const Conv1dConfig& c) {
  check_channels("conv1d", c.in, c.out, c.groups);
  check_axis("conv1d", {c.size, c.stride, c.padding, c.dilation});
  return {c.out, c.in / c.groups, c.size};
}

Shape weight_shape(const Conv2dConfig& c) {
  check_channels("conv2d", c.in, c.out, c.groups);
  check_axis("conv2d", {c.size.h, c.stride.h, c.padding.h, c.dilation.h});
  check_axis("conv2d", {c.size.w, c.stride.w, c.padding.w, c.dilation.w});
  return {c.out, c.in / c.groups, c.size.h, c.size.w};
}

// PyTorch writes this bound as kaiming_uniform with a = sqrt(5).
void initialise(Parameter& weight, std::optional<Parameter>& bias, bool with_bias, Rng& rng) {
  const double bound = 1 / std::sqrt(static_cast<double>(init::fans(weight.shape()).in));
  init::uniform(weight, rng, -bound, bound);
  if (!with_bias) return;
  bias.emplace(Shape{weight.shape()[0]});
  init::uniform(*bias, rng, -bound, bound);
}

}  // namespace

Conv1d::Conv1d(const Conv1dConfig& c, Rng& rng)
    : weight(weight_shape(c)), options_{c.stride, c.padding, c.dilation, c.groups} {
  initialise(weight, bias, c.bias, rng);
}

Var Conv1d::operator()(const Var& x) const { return conv1d(x, weight, bias ? Var(*bias) : Var(), options_); }

void Conv1d::visit(Visitor& v) {
  v("weight", weight);
  if (bias) v("bias", *bias);
}

Conv2d::Conv2d(const Conv2dConfig& c, Rng& rng)
    : weight(weight_shape(c)), options_{c.stride, c.padding, c.dilation, c.groups} {
  initialise(weight, bias, c.bias, rng);
}

Var Conv2d::operator()(const Var& x) const { return conv2d(x, weight, bias ? Var(*bias) : Var(), options_); }

void Conv2d::visit(Visitor& v) {
  v("weight", weight);
  if (bias) v("bias", *bias);
}

}  // namespace tapestry
