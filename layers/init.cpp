#include "layers/init.h"

#include <cmath>

namespace tapestry::init {

namespace {

double fan(const Parameter& p, Mode mode) {
  const Fans f = fans(p.shape());
  return static_cast<double>(mode == Mode::fan_in ? f.in : f.out);
}

double fan_sum(const Parameter& p) {
  const Fans f = fans(p.shape());
  return static_cast<double>(f.in) + static_cast<double>(f.out);
}

}  // namespace

Fans fans(const Shape& weight) {
  TAP_CHECK(weight.rank() >= 2, "init: fan_in and fan_out need a weight of rank 2 or more, not ", weight,
            "; use normal, uniform or constant for a vector");
  std::int64_t receptive = 1;
  for (int axis = 0; axis < weight.rank() - 2; ++axis) receptive *= weight[axis];
  return {weight[-2] * receptive, weight[-1] * receptive};
}

void zeros(Parameter& p) { constant(p, 0); }

void constant(Parameter& p, double value) { p.mutable_value().fill(value); }

void uniform(Parameter& p, Rng& rng, double low, double high) {
  const RandomKey key = rng.next();
  if (p.numel() == 0) return;
  TAP_CHECK(low <= high, "init: uniform needs low <= high, not ", low, " and ", high);
  fill_uniform(p.mutable_value(), low, high, key);
}

void normal(Parameter& p, Rng& rng, double std, double mean) {
  const RandomKey key = rng.next();
  if (p.numel() == 0) return;
  TAP_CHECK(std >= 0, "init: normal needs a std of 0 or more, not ", std);
  fill_normal(p.mutable_value(), mean, std, key);
}

void xavier_uniform(Parameter& p, Rng& rng, double gain) {
  const double bound = gain * std::sqrt(6 / fan_sum(p));
  uniform(p, rng, -bound, bound);
}

void xavier_normal(Parameter& p, Rng& rng, double gain) { normal(p, rng, gain * std::sqrt(2 / fan_sum(p))); }

void kaiming_uniform(Parameter& p, Rng& rng, Mode mode) {
  const double bound = std::sqrt(6 / fan(p, mode));
  uniform(p, rng, -bound, bound);
}

void kaiming_normal(Parameter& p, Rng& rng, Mode mode) { normal(p, rng, std::sqrt(2 / fan(p, mode))); }

void gpt2_residual(Parameter& p, Rng& rng, std::int64_t layers) {
  TAP_CHECK(layers > 0, "init: gpt2_residual needs at least 1 layer, not ", layers);
  normal(p, rng, 0.02 / std::sqrt(2.0 * static_cast<double>(layers)));
}

}  // namespace tapestry::init
