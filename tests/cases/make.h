// What the families of the catalogue share: inputs that are a pure function of (seed, shape, stream). Draw while rows
// are made and capture the result: a function that draws when it is called gets seed 0.
#pragma once

#include "core/random.h"
#include "tests/cases/cases.h"

namespace tapestry {

std::vector<Case> pointwise_cases();
std::vector<Case> reduction_cases();
std::vector<Case> shape_cases();
std::vector<Case> indexing_cases();
std::vector<Case> product_cases();
std::vector<Case> convolution_cases();
std::vector<Case> pool_cases();
std::vector<Case> row_cases();
std::vector<Case> loss_cases();
std::vector<Case> norm_cases();
std::vector<Case> recurrent_cases();
std::vector<Case> attention_cases();
std::vector<Case> layer_cases();

// While it lives, case_key() and all that draws with it are of this seed.
class CaseSeed {
 public:
  explicit CaseSeed(std::uint64_t seed) : outer_(current()) { current() = seed; }
  ~CaseSeed() { current() = outer_; }
  CaseSeed(const CaseSeed&) = delete;
  CaseSeed& operator=(const CaseSeed&) = delete;
  static std::uint64_t& current() {
    static thread_local std::uint64_t seed = 0;
    return seed;
  }

 private:
  std::uint64_t outer_;
};
inline RandomKey case_key(std::uint64_t purpose, std::uint64_t stream) {
  return {purpose + 100 * CaseSeed::current(), stream};
}

inline Tensor normal(const Shape& shape, std::uint64_t stream = 0, double std = 1) {
  Tensor t = empty(shape, DType::f64);
  fill_normal(t, 0, std, case_key(11, stream));
  return t;
}
inline Tensor uniform(const Shape& shape, double low, double high, std::uint64_t stream = 0) {
  Tensor t = empty(shape, DType::f64);
  fill_uniform(t, low, high, case_key(12, stream));
  return t;
}
inline Tensor positive(const Shape& shape, std::uint64_t stream = 0) { return uniform(shape, 0.4, 3, stream); }
// Of both signs, at least 0.2 from 0: for divisors, and for functions with a kink there.
inline Tensor away_from_zero(const Shape& shape, std::uint64_t stream = 0) {
  Tensor t = uniform(shape, -2, 2, stream);
  double* x = t.mutable_data<double>();
  for (std::int64_t i = 0; i < t.numel(); ++i) x[i] += x[i] < 0 ? -0.2 : 0.2;
  return t;
}
// Numbers far enough apart that a step of finite differences does not change their order.
inline Tensor distinct(const Shape& shape) {
  Tensor t = empty(shape, DType::f64);
  double* x = t.mutable_data<double>();
  const RandomKey key = case_key(14, 0);
  for (std::int64_t i = 0, n = t.numel(); i < n; ++i) {  // a shuffle, built up element by element
    const std::int64_t j = key.below(i, i + 1);
    x[i] = x[j];
    x[j] = 4.0 * static_cast<double>(i) / static_cast<double>(n) - 2;
  }
  return t;
}
// Integers in [0, bound), as i32 or i64.
inline Tensor ids(const Shape& shape, std::int64_t bound, std::uint64_t stream = 0, DType dtype = DType::i32) {
  const RandomKey key = case_key(13, stream);
  Tensor t = empty(shape, DType::i64);
  std::int64_t* values = t.mutable_data<std::int64_t>();
  for (std::int64_t i = 0; i < t.numel(); ++i) values[i] = key.below(i, bound);
  return t.to(dtype);
}

// A row of an op.
template <class F>
Case row(std::string name, std::vector<Tensor> inputs, F function) {
  Case c;
  c.name = std::move(name);
  c.inputs = std::move(inputs);
  c.function = gradcheck_function(std::move(function));
  return c;
}

}  // namespace tapestry
