// The vector functions against std:: in double, over all magnitudes, at special values, and lane by lane.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "core/kernels/simd_math.h"

using namespace tapestry;
using simd::Doubles;
using simd::Floats;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr int kWidth = simd::kLanes<float>;

// |value - right| in units of the last place that a float near `right` has.
double ulps(float value, double right) {
  if (static_cast<float>(right) == value && std::isinf(value)) return 0;
  if (std::isnan(value) != std::isnan(right) || std::isinf(value)) return 1e30;
  if (std::isnan(right)) return 0;
  return std::abs(value - right) / std::ldexp(1.0, right == 0 ? -149 : std::max(std::ilogb(right), -126) - 23);
}

struct Worst {
  double error = 0;
  float at = 0;
};

// Every `step`-th float, in the order of the bits, that lies in [low, high].
template <class F, class Reference>
Worst worst_error(F f, Reference reference, float low, float high, std::uint32_t step = 1021) {
  Worst worst;
  Floats x{};
  int lanes = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += step) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!(value >= low && value <= high)) continue;
    x[lanes++] = value;
    if (lanes < kWidth) continue;
    lanes = 0;
    const Floats y = f(x);
    for (int i = 0; i < kWidth; ++i)
      if (const double error = ulps(y[i], reference(double{x[i]})); error > worst.error) worst = {error, x[i]};
  }
  return worst;
}

template <class F, class Reference>
void check_error(const std::string& name, F f, Reference reference, float low, float high, double bound) {
  const Worst worst = worst_error(f, reference, low, high);
  MESSAGE(name, " on [", low, ", ", high, "]: at most ", worst.error, " ulp, at ", worst.at);
  CHECK(worst.error <= bound);
}

bool same(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

const std::initializer_list<float> kSpecial{0.0f, -0.0f, 1e-45f, -1e-45f, 1e-30f, 0.7f,  -0.7f, 5.0f,  -5.0f,
                                            90.f, -90.f, 1e20f,  -1e20f,  kMax,   -kMax, kInf,  -kInf, kNaN};

}  // namespace

TEST_CASE("float functions stay within their stated error over all magnitudes") {
  check_error(
      "exp", [](Floats x) { return simd::exp(x); }, [](double x) { return std::exp(x); }, -87.33654f, kInf, 1.1);
  check_error(
      "log", [](Floats x) { return simd::log(x); }, [](double x) { return std::log(x); }, 0, kInf, 1.0);
  check_error(
      "sqrt", [](Floats x) { return simd::sqrt(x); }, [](double x) { return std::sqrt(x); }, 0, kInf, 0.5001);
  check_error(
      "tanh", [](Floats x) { return simd::tanh(x); }, [](double x) { return std::tanh(x); }, -kInf, kInf, 3);
  check_error(
      "erf", [](Floats x) { return simd::erf(x); }, [](double x) { return std::erf(x); }, -kInf, kInf, 3);
  check_error(
      "sigmoid", [](Floats x) { return simd::sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); }, -87, kInf,
      3);
  check_error(
      "expm1", [](Floats x) { return simd::expm1(x); }, [](double x) { return std::expm1(x); }, -kInf, kInf, 2);
  check_error(
      "log1p", [](Floats x) { return simd::log1p(x); }, [](double x) { return std::log1p(x); }, -1, kInf, 3);
  for (float limit : {1e4f, kMax}) {
    check_error(
        "sin", [](Floats x) { return simd::sin(x); }, [](double x) { return std::sin(x); }, -limit, limit, 1.5);
    check_error(
        "cos", [](Floats x) { return simd::cos(x); }, [](double x) { return std::cos(x); }, -limit, limit, 1.5);
  }
  const auto phi = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  check_error(
      "normal_cdf", [](Floats x) { return simd::normal_cdf(x); }, phi, -3, kInf, 7);
  check_error(
      "normal_cdf", [](Floats x) { return simd::normal_cdf(x); }, phi, -13, -3, 70);
}

TEST_CASE("sin and cos next to their zeros, up to large multiples of pi/2") {
  double worst = 0;
  for (double n = 1; n < 8e7; n = std::floor(n * 1.0007) + 1) {
    const float nearest = static_cast<float>(n * 1.57079632679489661923);
    for (float x : {nearest, std::nextafter(nearest, 0.0f), std::nextafter(nearest, kInf), -nearest}) {
      worst = std::max(worst, ulps(simd::sin(x), std::sin(double{x})));
      worst = std::max(worst, ulps(simd::cos(x), std::cos(double{x})));
    }
  }
  MESSAGE("at most ", worst, " ulp");
  CHECK(worst <= 1.5);
}

TEST_CASE("N07 expm1, log1p, sin, cos at infinities and zeros") {
  CHECK(simd::expm1(-kInf) == -1);
  CHECK(simd::expm1(kInf) == kInf);
  CHECK(simd::expm1(88.72283f) < kInf);
  CHECK(simd::expm1(88.7229f) == kInf);
  CHECK(simd::log1p(-1.0f) == -kInf);
  CHECK(simd::log1p(kInf) == kInf);
  CHECK(std::isnan(simd::log1p(-1.5f)));
  CHECK(std::isnan(simd::log1p(-kInf)));
  CHECK(simd::cos(0.0f) == 1);
  for (float sign : {1.0f, -1.0f}) {
    CHECK(same(simd::expm1(sign * 0.0f), sign * 0.0f));
    CHECK(same(simd::log1p(sign * 0.0f), sign * 0.0f));
    CHECK(same(simd::sin(sign * 0.0f), sign * 0.0f));
    CHECK(same(simd::expm1(sign * 1e-45f), sign * 1e-45f));
    CHECK(same(simd::log1p(sign * 1e-45f), sign * 1e-45f));
    CHECK(same(simd::sin(sign * 1e-45f), sign * 1e-45f));
    CHECK(std::isnan(simd::sin(sign * kInf)));
    CHECK(std::isnan(simd::cos(sign * kInf)));
    CHECK(std::isnan(simd::sin(sign * kNaN)));
    CHECK(std::isnan(simd::cos(sign * kNaN)));
    CHECK(std::isnan(simd::expm1(sign * kNaN)));
    CHECK(std::isnan(simd::log1p(sign * kNaN)));
  }
}

TEST_CASE("N07 exp and log at infinities and zeros") {
  CHECK(simd::exp(-kInf) == 0);
  CHECK(simd::exp(-kMax) == 0);
  CHECK(simd::exp(-87.5f) == 0);  // below the smallest normal float
  CHECK(simd::exp(-87.33654f) > 0);
  CHECK(simd::exp(88.72283f) < kInf);
  CHECK(simd::exp(88.7229f) == kInf);
  CHECK(simd::exp(kInf) == kInf);
  CHECK(simd::exp(0.0f) == 1);
  CHECK(simd::exp(-0.0f) == 1);
  CHECK(simd::log(0.0f) == -kInf);
  CHECK(simd::log(-0.0f) == -kInf);
  CHECK(simd::log(1.0f) == 0);
  CHECK(simd::log(kInf) == kInf);
  CHECK(std::isnan(simd::log(-1.0f)));
  CHECK(std::isnan(simd::log(-1e-45f)));
  CHECK(std::isnan(simd::log(-kInf)));
  CHECK(simd::log(1e-45f) == doctest::Approx(-103.27893));
}

TEST_CASE("limits, signed zeros and NaN") {
  for (float sign : {1.0f, -1.0f}) {
    CHECK(simd::tanh(sign * kInf) == sign);
    CHECK(simd::tanh(sign * kMax) == sign);
    CHECK(simd::erf(sign * kInf) == sign);
    CHECK(simd::erf(sign * kMax) == sign);
    CHECK(same(simd::tanh(sign * 0.0f), sign * 0.0f));
    CHECK(same(simd::erf(sign * 0.0f), sign * 0.0f));
    CHECK(same(simd::tanh(sign * 1e-45f), sign * 1e-45f));
  }
  CHECK(simd::sigmoid(-kInf) == 0);
  CHECK(simd::sigmoid(kInf) == 1);
  CHECK(simd::sigmoid(0.0f) == 0.5f);
  CHECK(simd::normal_cdf(-kInf) == 0);
  CHECK(simd::normal_cdf(kInf) == 1);
  CHECK(simd::normal_cdf(0.0f) == 0.5f);
  for (float nan : {kNaN, -kNaN}) {
    CHECK(std::isnan(simd::exp(nan)));
    CHECK(std::isnan(simd::log(nan)));
    CHECK(std::isnan(simd::sqrt(nan)));
    CHECK(std::isnan(simd::tanh(nan)));
    CHECK(std::isnan(simd::erf(nan)));
    CHECK(std::isnan(simd::sigmoid(nan)));
    CHECK(std::isnan(simd::normal_cdf(nan)));
  }
}

TEST_CASE("a single float gets the bits of a lane, whatever the other lanes hold") {
  const auto check = [](auto f) {
    for (float value : kSpecial) {
      Floats x = simd::splat(0.3f);
      x[kWidth - 1] = value;
      const float lane = f(x)[kWidth - 1], alone = f(value);
      CHECK((same(lane, alone) || (std::isnan(lane) && std::isnan(alone))));
    }
  };
  check([](auto x) { return simd::exp(x); });
  check([](auto x) { return simd::log(x); });
  check([](auto x) { return simd::expm1(x); });
  check([](auto x) { return simd::log1p(x); });
  check([](auto x) { return simd::sin(x); });
  check([](auto x) { return simd::cos(x); });
  check([](auto x) { return simd::pow(x, x); });
  check([](auto x) { return simd::sqrt(x); });
  check([](auto x) { return simd::tanh(x); });
  check([](auto x) { return simd::erf(x); });
  check([](auto x) { return simd::sigmoid(x); });
  check([](auto x) { return simd::normal_cdf(x); });
  check([](auto x) { return simd::abs(x); });
}

TEST_CASE("double functions are those of std") {
  for (double value : {-700.0, -3.0, -1e-9, 0.0, 1e-9, 0.4, 2.0, 30.0}) {
    const Doubles x = simd::splat(value);
    CHECK(simd::exp(x)[1] == std::exp(value));
    CHECK(simd::tanh(x)[0] == std::tanh(value));
    CHECK(simd::expm1(x)[0] == std::expm1(value));
    CHECK(simd::sin(x)[1] == std::sin(value));
    CHECK(simd::cos(x)[0] == std::cos(value));
    CHECK(simd::pow(x, x * 0.0 + 3.0)[1] == std::pow(value, 3.0));
    CHECK(simd::erf(x)[1] == std::erf(value));
    CHECK(simd::abs(x)[1] == std::abs(value));
    CHECK(simd::sigmoid(x)[1] == 1 / (1 + std::exp(-value)));
    CHECK(simd::normal_cdf(x)[1] == doctest::Approx(0.5 * std::erfc(-value / std::sqrt(2.0))).epsilon(1e-14));
    if (value > 0) CHECK(simd::log(x)[1] == std::log(value));
    if (value > 0) CHECK(simd::log1p(x)[1] == std::log1p(value));
    if (value > 0) CHECK(simd::sqrt(x)[1] == std::sqrt(value));
  }
}

TEST_CASE("min, max and select; NaN wins on either side") {
  CHECK(simd::max(1.0f, 2.0f) == 2);
  CHECK(simd::min(1.0, 2.0) == 1);
  CHECK(std::isnan(simd::max(kNaN, 1.0f)));
  CHECK(std::isnan(simd::max(1.0f, kNaN)));
  const Floats one = simd::splat(1.0f), nan = simd::splat(kNaN);
  CHECK(std::isnan(simd::min(one, nan)[3]));
  CHECK(std::isnan(simd::min(nan, one)[3]));
  CHECK(simd::max(one, one + one)[2] == 2);
  CHECK(simd::select(one > 0.5f, 3.0f, one)[1] == 3);
  CHECK(simd::select(one > 1.5f, one, 4.0f)[1] == 4);
}

TEST_CASE("horizontal sum and maximum see every lane") {
  Floats x;
  for (int i = 0; i < kWidth; ++i) x[i] = static_cast<float>(1 << i);
  CHECK(simd::sum(x) == (1 << kWidth) - 1);
  for (int i = 0; i < kWidth; ++i) {
    Floats y = simd::splat(-kInf);
    y[i] = -3;
    CHECK(simd::max(y) == -3);
    y[i] = kNaN;
    CHECK(std::isnan(simd::max(y)));
    CHECK(std::isnan(simd::sum(y)));
  }
  Doubles z = simd::splat(0.5);
  z[1] = 7;
  CHECK(simd::sum(z) == 7 + 0.5 * (simd::kLanes<double> - 1));
  CHECK(simd::max(z) == 7);
}

TEST_CASE("partial loads and stores touch only their lanes") {
  const float from[3]{1, 2, 3};
  const Floats x = simd::load_partial(from, 3, 9.0f);
  CHECK(x[2] == 3);
  CHECK(x[3] == 9);
  float to[3]{-1, -1, -1};
  simd::store_partial(to, x, 2);
  CHECK(to[1] == 2);
  CHECK(to[2] == -1);
}
