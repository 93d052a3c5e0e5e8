// How tests make and compare tensors.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/random.h"

namespace tapestry {

inline Tensor random_normal(const Shape& shape, std::uint64_t seed, DType dtype = DType::f32) {
  Tensor t = empty(shape, dtype);
  fill_normal(t, 0, 1, RandomKey{seed, 0});
  return t;
}

// Token ids in [0, bound), i32.
inline Tensor random_ids(const Shape& shape, std::int64_t bound, std::uint64_t seed) {
  Tensor t = empty(shape, DType::i32);
  const RandomKey key{seed, 0};
  std::int32_t* ids = t.mutable_data<std::int32_t>();
  for (std::int64_t i = 0; i < t.numel(); ++i) ids[i] = static_cast<std::int32_t>(key.below(i, bound));
  return t;
}

inline double max_abs(const Tensor& t) {
  double result = 0;
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const double value = std::abs(t.at(i));
    if (!(value <= result)) result = value;  // keeps a NaN
  }
  return result;
}

// The largest difference over the largest reference value; infinite where the shapes differ or a value is not finite.
inline double relative_error(const Tensor& got, const Tensor& reference) {
  if (!(got.shape() == reference.shape())) return std::numeric_limits<double>::infinity();
  double difference = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    const double d = std::abs(got.at(i) - reference.at(i));
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, d);
  }
  return difference / std::max(max_abs(reference), std::numeric_limits<double>::min());
}

}  // namespace tapestry
