// exp, log, sqrt, tanh, sin, erf and friends for float, double and their vectors: simd::exp(x) for any A.
// Floats run through polynomials in vector registers, a single float through the same code, so a tail gets the same
// bits as a full vector. Doubles call std:: lane by lane: gradient checks want accuracy, not speed.
// NaN gives NaN; infinities give the limits. Results of exp below 2^-126 become 0; there is no other flush.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "core/kernels/simd.h"

namespace tapestry::simd {

using Floats = Vec<float>;
using Doubles = Vec<double>;
using Bits = Vec<std::uint32_t>;

namespace detail {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kLn2High = 0x1.62e400p-1f, kLn2Low = 0x1.7f7d1cp-20f;  // products of kLn2High with n are exact

template <class F>
inline Doubles each_lane(Doubles x, F f) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = f(x[i]);
  return x;
}

// Horner's rule; coefficients from the lowest power up.
template <std::size_t N>
inline Floats polynomial(Floats x, const float (&c)[N]) {
  Floats y = splat(c[N - 1]);
  for (std::size_t i = N - 1; i > 0; --i) y = y * x + c[i - 1];
  return y;
}

// x = n ln2 + r with |r| <= ln2 / 2.
struct ExpParts {
  Floats expm1;   // e^r - 1, to relative 1.4e-8 before rounding
  Bits exponent;  // n, shifted to where a float keeps its exponent
};
inline ExpParts exp_parts(Floats x) {
  constexpr float kToInteger = 0x1.8p23f;  // adding it rounds to an integer that ends up in the low mantissa bits
  const Floats shifted = x * 0x1.715476p0f + kToInteger;
  const Floats n = shifted - kToInteger;
  const Floats r = x - n * kLn2High - n * kLn2Low;
  const Floats tail =
      polynomial(r, {0.499999981329f, 0.166665426847f, 0.0416672039371f, 0.00836664678249f, 0.00138824962451f});
  return {r + r * r * tail, std::bit_cast<Bits>(shifted) << 23};
}

// e^x - 1 for |x| up to 20; at most 2 ulp.
inline Floats expm1_near(Floats x) {
  const ExpParts parts = exp_parts(x);
  const Floats scale = std::bit_cast<Floats>(parts.exponent + std::bit_cast<std::uint32_t>(1.0f));
  return parts.expm1 * scale + (scale - 1.0f);
}

// e^(a^2) erfc(a) for a in [0, 10], to relative 2.1e-9 before rounding.
inline Floats scaled_erfc(Floats a) {
  const Floats t = 1.0f / (a + 3.0f);
  return t * polynomial((a - 3.0f) * t, {1.07400690777f, -0.883394486449f, 0.590228298515f, -0.31046600844f,
                                         0.119529068277f, -0.0268398265574f, -0.00122643032086f, 0.0030803284321f,
                                         -0.000483177355863f, -0.000325333777829f});
}

}  // namespace detail

// ---- sign and root
inline Floats abs(Floats x) { return std::bit_cast<Floats>(std::bit_cast<Bits>(x) & 0x7fffffffu); }
inline Floats copysign(Floats magnitude, Floats sign) {
  return std::bit_cast<Floats>((std::bit_cast<Bits>(magnitude) & 0x7fffffffu) |
                               (std::bit_cast<Bits>(sign) & 0x80000000u));
}
inline Doubles abs(Doubles x) {
  return detail::each_lane(x, [](double v) { return std::fabs(v); });
}
inline float abs(float x) { return std::fabs(x); }
inline double abs(double x) { return std::fabs(x); }

template <Vector A>
inline A sqrt(A x) {
  for (int i = 0; i < kLanes<Element<A>>; ++i) x[i] = std::sqrt(x[i]);
  return x;
}
template <Scalar A>
inline A sqrt(A x) {
  return std::sqrt(x);
}

// ---- exponentials
// At most 1.1 ulp where the result is normal; smaller results are 0.
inline Floats exp(Floats x) {
  const detail::ExpParts parts = detail::exp_parts(x);
  // Between these bounds the result is normal, so adding n to the exponent is exact.
  constexpr float kLowest = -0x1.5d589ep6f, kHighest = 0x1.62e42ep6f;
  Floats y = std::bit_cast<Floats>(std::bit_cast<Bits>(1.0f + parts.expm1) + parts.exponent);
  y = select(x <= kHighest, y, x + detail::kInf);
  return select(x < kLowest, 0.0f, y);
}

// (e^2|x| - 1) / (e^2|x| + 1) with the sign of x; at most 3 ulp, down to the smallest |x|.
inline Floats tanh(Floats x) {
  const Floats twice = abs(x + x);
  const Floats expm1 = detail::expm1_near(select(twice > 20.0f, 20.0f, twice));
  return copysign(expm1 / (expm1 + 2.0f), x);
}

// At most 2 ulp, down to the smallest |x|. Below -20 the result is -1; above 20 the 1 no longer counts.
inline Floats expm1(Floats x) {
  const Floats near = detail::expm1_near(select(x < -20.0f, -20.0f, select(x > 20.0f, 20.0f, x)));
  return select(x > 20.0f, exp(x), copysign(near, x));
}

// At most 1 ulp, subnormal x included. log(0) is -inf, log of a negative number NaN.
inline Floats log(Floats x) {
  using detail::kInf;
  const auto subnormal = x < 0x1p-126f;
  const Bits bits = std::bit_cast<Bits>(select(subnormal, x * 0x1p23f, x));
  constexpr std::uint32_t kRootHalf = std::bit_cast<std::uint32_t>(0x1.6a09e6p-1f);
  // x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2).
  const auto exponent = std::bit_cast<Vec<std::int32_t>>(bits - kRootHalf) >> 23;
  const Floats n = __builtin_convertvector(exponent, Floats) - select(subnormal, splat(23.0f), 0.0f);
  const Floats f = std::bit_cast<Floats>(bits - (std::bit_cast<Bits>(exponent) << 23)) - 1.0f;
  const Floats tail = detail::polynomial(f, {0.333333317078f, -0.250008210285f, 0.200012268731f, -0.16623357535f,
                                             0.142017579983f, -0.131601804663f, 0.127615773481f, -0.0763450290965f});
  const Floats y = f + (f * f * (f * tail - 0.5f) + n * detail::kLn2Low) + n * detail::kLn2High;
  const Floats special = select(x == 0.0f, -kInf, select(x < 0.0f, std::numeric_limits<float>::quiet_NaN(), x));
  return select((x > 0.0f) & (x < kInf), y, special);
}

// log(u) x / (u - 1) with u = 1 + x rounded: the error of u cancels. At most 3 ulp, down to the smallest |x|.
inline Floats log1p(Floats x) {
  const Floats u = 1.0f + x;
  const Floats step = u - 1.0f;
  const Floats y = log(u) * (x / step);
  return select((step == 0.0f) | (x == detail::kInf), x, y);
}

// ---- sine and cosine
namespace detail {

// Beyond it the quadrant is no longer exact in the reduction below.
inline constexpr float kLargeAngle = 0x1p27f;

// x = n pi/2 + r with |r| <= pi/4. In double: near a multiple of pi/2 nearly all digits of x cancel.
struct Angle {
  Floats r;
  Vec<std::int32_t> n;
};
inline Angle reduce_angle(Floats x) {
  constexpr double kToInteger = 0x1.8p52, kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHigh = 0x1.921fb5p0, kLow = 0x1.110b4611a6263p-26;  // pi/2; products of kHigh with n are exact
  constexpr int kCount = kLanes<float>;
  float in[kCount], r[kCount];
  std::int32_t quadrant[kCount];
  store(in, select(abs(x) <= kLargeAngle, x, 0.0f));
  for (int i = 0; i < kCount; ++i) {
    const double v = in[i];
    const double n = (v * kTwoOverPi + kToInteger) - kToInteger;
    r[i] = static_cast<float>(v - n * kHigh - n * kLow);
    quadrant[i] = static_cast<std::int32_t>(n);
  }
  return {load(r), load(quadrant)};
}

// sin(x + shift pi/2), without the sign of a zero.
inline Floats sine(Floats x, std::int32_t shift) {
  const auto [r, n] = reduce_angle(x);
  const Vec<std::int32_t> quadrant = n + shift;
  const Floats square = r * r;
  const Floats sin =
      r +
      r * square * polynomial(square, {-0.166666671634f, 0.00833333190531f, -0.000198400841327f, 2.72496208709e-06f});
  const Floats cos =
      1.0f - (0.5f * square -
              square * square * polynomial(square, {0.0416666641831f, -0.00138883013278f, 2.45476894634e-05f}));
  const Floats y = select((quadrant & 1) == 0, sin, cos);
  return std::bit_cast<Floats>(std::bit_cast<Bits>(y) ^ (std::bit_cast<Bits>(quadrant & 2) << 30));
}

// The lanes of y whose angle is large, infinite or NaN are those of f in double.
template <class F>
inline Floats with_large_angles(Floats x, Floats y, F f) {
  for (int i = 0; i < kLanes<float>; ++i)
    if (!(std::fabs(x[i]) <= kLargeAngle)) [[unlikely]]
      y[i] = static_cast<float>(f(double{x[i]}));
  return y;
}

}  // namespace detail

// At most 1.5 ulp for every x, next to the zeros too; slower for |x| > 2^27.
inline Floats sin(Floats x) {
  const Floats y = select(x == 0.0f, x, detail::sine(x, 0));
  return detail::with_large_angles(x, y, [](double v) { return std::sin(v); });
}
inline Floats cos(Floats x) {
  return detail::with_large_angles(x, detail::sine(x, 1), [](double v) { return std::cos(v); });
}

// ---- powers
// std::pow lane by lane: exp(b log(a)) would lose up to seven bits, and there are many special values.
template <Vector A>
inline A pow(A a, A b) {
  for (int i = 0; i < kLanes<Element<A>>; ++i) a[i] = std::pow(a[i], b[i]);
  return a;
}
template <Scalar A>
inline A pow(A a, A b) {
  return std::pow(a, b);
}

// ---- the error function and the normal distribution
// At most 3 ulp, down to the smallest |x|.
inline Floats erf(Floats x) {
  const Floats a = abs(x);
  const Floats square = x * x;
  const Floats near = x * detail::polynomial(square, {1.1283791637f, -0.376126013886f, 0.112831128131f,
                                                      -0.0268208067129f, 0.00508513041635f, -0.000653523591371f});
  const Floats far = 1.0f - exp(-square) * detail::scaled_erfc(select(a > 10.0f, 10.0f, a));
  return select(a < 0.8f, near, copysign(far, x));
}

// Phi(x) = erfc(-x / sqrt(2)) / 2; at most 7 ulp for x >= -3, and 70 (relative 5e-6) in the tail down to x = -13,
// where the square of x is rounded.
inline Floats normal_cdf(Floats x) {
  const Floats a = abs(x) * 0x1.6a09e6p-1f;
  const Floats tail = exp(x * x * -0.5f) * detail::scaled_erfc(select(a > 10.0f, 10.0f, a)) * 0.5f;
  return select(x > 0.0f, 1.0f - tail, tail);
}

// ---- double, and single floats
inline double exp(double x) { return std::exp(x); }
inline double expm1(double x) { return std::expm1(x); }
inline double log(double x) { return std::log(x); }
inline double log1p(double x) { return std::log1p(x); }
inline double sin(double x) { return std::sin(x); }
inline double cos(double x) { return std::cos(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double erf(double x) { return std::erf(x); }
inline double normal_cdf(double x) { return 0.5 * std::erfc(x * -0x1.6a09e667f3bcdp-1); }

#define TAP_SIMD_LANES(name)                                       \
  inline Doubles name(Doubles x) {                                 \
    return detail::each_lane(x, [](double v) { return name(v); }); \
  }                                                                \
  inline float name(float x) { return name(splat(x))[0]; }
TAP_SIMD_LANES(exp)
TAP_SIMD_LANES(expm1)
TAP_SIMD_LANES(log)
TAP_SIMD_LANES(log1p)
TAP_SIMD_LANES(sin)
TAP_SIMD_LANES(cos)
TAP_SIMD_LANES(tanh)
TAP_SIMD_LANES(erf)
TAP_SIMD_LANES(normal_cdf)
#undef TAP_SIMD_LANES

// 1 / (1 + e^-x); at most 3 ulp for x >= -87, as a float.
template <Real A>
inline A sigmoid(A x) {
  using T = Element<A>;
  return T(1) / (T(1) + exp(-x));
}

}  // namespace tapestry::simd
