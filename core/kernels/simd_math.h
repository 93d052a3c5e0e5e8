// exp, log, sqrt, tanh, erf and friends for float, double and their vectors: simd::exp(x) for any A.
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
  const detail::ExpParts parts = detail::exp_parts(select(twice > 20.0f, 20.0f, twice));
  const Floats scale = std::bit_cast<Floats>(parts.exponent + std::bit_cast<std::uint32_t>(1.0f));
  const Floats expm1 = parts.expm1 * scale + (scale - 1.0f);
  return copysign(expm1 / (expm1 + 2.0f), x);
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
inline double log(double x) { return std::log(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double erf(double x) { return std::erf(x); }
inline double normal_cdf(double x) { return 0.5 * std::erfc(x * -0x1.6a09e667f3bcdp-1); }

#define TAP_SIMD_LANES(name)                                       \
  inline Doubles name(Doubles x) {                                 \
    return detail::each_lane(x, [](double v) { return name(v); }); \
  }                                                                \
  inline float name(float x) { return name(splat(x))[0]; }
TAP_SIMD_LANES(exp)
TAP_SIMD_LANES(log)
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
