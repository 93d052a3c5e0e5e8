// Shared by the tests of kernels over the last axis: sizes, random tensors, poisoned gradient targets, comparisons.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/grad.h"
#include "core/parallel.h"
#include "core/random.h"

namespace tapestry::testing {

inline const std::vector<std::int64_t> kWidths{1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 129, 513};
inline const std::vector<std::int64_t> kRows{0, 1, 3, 32};
inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Relative error that a sum over a few hundred elements may have.
template <class T>
inline constexpr double kTolerance = std::is_same_v<T, float> ? 4e-6 : 1e-13;

inline Tensor random_normal(const Shape& shape, DType dtype, std::uint64_t stream) {
  Tensor t = empty(shape, dtype);
  fill_normal(t, 0, 1, RandomKey{1234, stream});
  return t;
}

inline std::vector<double> to_doubles(const Tensor& t) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < t.numel(); ++i) values.push_back(t.at(i));
  return values;
}

// Equal infinities and NaNs count as close.
inline bool close(double value, double right, double tolerance) {
  if (std::isnan(right)) return std::isnan(value);
  return value == right || std::abs(value - right) <= tolerance * (1 + std::abs(right));
}
inline void check_close(const Tensor& t, const std::vector<double>& right, double tolerance) {
  REQUIRE(t.numel() == static_cast<std::int64_t>(right.size()));
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const double value = t.at(i), expected = right[static_cast<std::size_t>(i)];
    if (close(value, expected, tolerance)) continue;
    CAPTURE(t.shape().back());
    CAPTURE(i);
    CHECK(value == doctest::Approx(expected).epsilon(tolerance));
    return;
  }
}

// The same values at `elements` elements past the start of another storage, so rows start at odd addresses.
inline Tensor at_offset(const Tensor& t, std::int64_t elements) {
  const Tensor whole = full({t.numel() + elements}, 0, t.dtype());
  Tensor view(whole.storage(), elements * size_of(t.dtype()), t.shape(), t.dtype());
  view.copy_from(t);
  return view;
}

// A gradient to be written: for the first time, with NaN in the memory, or a second time, onto random values.
class Target {
 public:
  Target(const Shape& shape, DType dtype, bool second, std::int64_t offset = 0)
      : second_(second), before_(second ? random_normal(shape, dtype, 99) : full(shape, kNaN, dtype)) {
    slot_.tensor = at_offset(before_, offset);
    slot_.shape = shape;
    slot_.dtype = dtype;
    slot_.set = second;
    slot_.pinned = true;
  }
  Grad grad() { return Grad(&slot_, &writes_); }
  const Tensor& tensor() const { return slot_.tensor; }

  void check(const std::vector<double>& gradient, double tolerance) const {
    CHECK(writes_ == 1);
    std::vector<double> right = gradient;
    if (second_) {
      const std::vector<double> old = to_doubles(before_);
      for (std::size_t i = 0; i < right.size(); ++i) right[i] += old[i];
    }
    check_close(slot_.tensor, right, tolerance);
  }

 private:
  bool second_;
  Tensor before_;
  GradSlot slot_;
  std::uint8_t writes_ = 0;
};

// Central differences of f over every element of the f64 tensor x.
inline std::vector<double> numeric_gradient(Tensor x, const std::function<double()>& f) {
  constexpr double kStep = 1e-5;
  std::vector<double> gradient;
  double* p = x.mutable_data<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double value = p[i];
    p[i] = value + kStep;
    const double above = f();
    p[i] = value - kStep;
    gradient.push_back((above - f()) / (2 * kStep));
    p[i] = value;
  }
  return gradient;
}

inline double dot(const Tensor& a, const Tensor& b) {
  double total = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) total += a.at(i) * b.at(i);
  return total;
}

// Runs f with 1, 2, 3 and 7 threads; the tensors it returns must not differ in a bit.
inline void check_same_bits_for_any_threads(const std::function<std::vector<Tensor>()>& f) {
  set_num_threads(1);
  const std::vector<Tensor> first = f();
  for (int threads : {2, 3, 7}) {
    set_num_threads(threads);
    const std::vector<Tensor> again = f();
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(first[i], again[i]));
  }
  set_num_threads(0);
}

}  // namespace tapestry::testing
