#include "layers/init.h"

// Eigen's own threads change bits with the thread count.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/QR>
#include <algorithm>
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
  if (weight.rank() == 2) return {weight[0], weight[1]};
  std::int64_t taps = 1;
  for (int axis = 2; axis < weight.rank(); ++axis) taps *= weight[axis];
  return {weight[1] * taps, weight[0] * taps};
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

void truncated_normal(Parameter& p, Rng& rng, double std, double cut) {
  const RandomKey key = rng.next();
  if (p.numel() == 0) return;
  TAP_CHECK(std >= 0 && cut >= 0.1, "init: truncated_normal needs a std of 0 or more and a cut of at least 0.1, not ",
            std, " and ", cut);
  const std::int64_t n = p.numel();
  // The k-th attempt for element i is number i + k n of the stream.
  Tensor values = empty(p.shape(), DType::f64);
  double* v = values.mutable_data<double>();
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t draw = i;
    do {
      v[i] = key.normal(draw);
      draw += n;
    } while (std::abs(v[i]) > cut);
    v[i] *= std;
  }
  p.assign(values);
}

void orthogonal(Parameter& p, Rng& rng, double gain) {
  const RandomKey key = rng.next();
  TAP_CHECK(p.shape().rank() >= 2, "init: orthogonal needs a weight of rank 2 or more, not ", p.shape());
  if (p.numel() == 0) return;
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const std::int64_t rows = p.shape()[0], columns = p.numel() / rows;
  const std::int64_t tall = std::max(rows, columns), narrow = std::min(rows, columns);
  Tensor draws = empty({tall, narrow}, DType::f64);
  fill_normal(draws, 0, 1, key);
  const Eigen::HouseholderQR<Matrix> qr(Eigen::Map<const Matrix>(draws.data<double>(), tall, narrow));
  Matrix q = qr.householderQ() * Matrix::Identity(tall, narrow);
  // With the signs of R's diagonal the distribution is uniform (Mezzadri 2007).
  for (std::int64_t j = 0; j < narrow; ++j) q.col(j) *= qr.matrixQR()(j, j) < 0 ? -gain : gain;
  Tensor values = empty(p.shape(), DType::f64);
  Eigen::Map<Matrix> out(values.mutable_data<double>(), rows, columns);
  if (rows >= columns)
    out = q;
  else
    out = q.transpose();
  p.assign(values);
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
