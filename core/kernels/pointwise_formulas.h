// The formulas of the pointwise functions of one input. f is the function; df is its derivative, from the one value
// that kSaves names (with Saves::nothing it does not depend on its argument). A is double, float or a vector of them.
// Finite x, however large, gives a finite derivative unless the derivative itself is infinite or overflows; infinities
// give the limits; NaN gives NaN. dx(dy, saved), where a formula has it, stands for dy * df(saved): a function that
// chooses gives what it leaves out the gradient 0, also where dy is infinite or NaN.
#pragma once

#include "core/kernels/pointwise.h"
#include "core/kernels/simd_math.h"

namespace tapestry::formula {

// Beyond it silu, gelu and their derivatives are their limits in every type, so clamping to it keeps inf * 0 out.
inline constexpr double kFlat = 1000;
template <class A>
TAP_HD A at_least_flat(A x) {
  return simd::max(x, simd::constant<A>(-kFlat));
}
template <class A>
TAP_HD A within_flat(A x) {
  return simd::min(at_least_flat(x), simd::constant<A>(kFlat));
}

template <class A>
TAP_HD A chosen(A dy, A derivative) {
  return simd::select(derivative == A{}, A{}, dy * derivative);
}

struct Neg {
  static constexpr Saves kSaves = Saves::nothing;
  template <class A>
  TAP_HD static A f(A x) {
    return -x;
  }
  template <class A>
  TAP_HD static A df(A) {
    return simd::constant<A>(-1);
  }
};

struct Exp {
  static constexpr Saves kSaves = Saves::output;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::exp(x);
  }
  template <class A>
  TAP_HD static A df(A y) {
    return y;
  }
};

struct Log {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::log(x);
  }
  template <class A>
  TAP_HD static A df(A x) {
    return simd::Element<A>(1) / x;
  }
};

struct Sqrt {
  static constexpr Saves kSaves = Saves::output;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::sqrt(x);
  }
  template <class A>
  TAP_HD static A df(A y) {
    return simd::Element<A>(0.5) / y;
  }
};

struct Square {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return x * x;
  }
  template <class A>
  TAP_HD static A df(A x) {
    return x + x;
  }
};

struct Tanh {
  static constexpr Saves kSaves = Saves::output;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::tanh(x);
  }
  template <class A>
  TAP_HD static A df(A y) {
    using T = simd::Element<A>;
    return (T(1) - y) * (T(1) + y);
  }
};

struct Sigmoid {
  static constexpr Saves kSaves = Saves::output;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::sigmoid(x);
  }
  template <class A>
  TAP_HD static A df(A y) {
    return y * (simd::Element<A>(1) - y);
  }
};

struct Relu {
  static constexpr Saves kSaves = Saves::output;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::max(x, A{});
  }
  // y itself where it is not positive: 0 or NaN.
  template <class A>
  TAP_HD static A df(A y) {
    return simd::select(y > A{}, simd::constant<A>(1), y);
  }
  template <class A>
  TAP_HD static A dx(A dy, A saved) {
    return chosen(dy, df(saved));
  }
};

// y = x s with s = sigmoid(x); dy/dx = s + x s (1 - s).
struct Silu {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return at_least_flat(x) * simd::sigmoid(x);
  }
  template <class A>
  TAP_HD static A df(A x) {
    const A u = within_flat(x);
    const A s = simd::sigmoid(u);
    return s + u * s * (simd::Element<A>(1) - s);
  }
};

// y = x Phi(x); dy/dx = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi).
struct Gelu {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return at_least_flat(x) * simd::normal_cdf(x);
  }
  template <class A>
  TAP_HD static A df(A x) {
    using T = simd::Element<A>;
    const A u = within_flat(x);
    return simd::normal_cdf(u) + u * simd::exp(u * u * T(-0.5)) * T(0.3989422804014326779);
  }
};

// tanh(z) = 2 sigmoid(2z) - 1, so y = x s with s = sigmoid(2z), z = sqrt(2/pi) (x + 0.044715 x^3).
// dy/dx = s + x s (1 - s) 2 dz/dx.
struct GeluTanh {
  static constexpr Saves kSaves = Saves::input;
  static constexpr double kTwice = 1.5957691216057307118;  // 2 sqrt(2/pi)
  static constexpr double kCubic = kTwice * 0.044715;
  template <class A>
  TAP_HD static A gate(A u) {
    using T = simd::Element<A>;
    return simd::sigmoid(u * (T(kTwice) + T(kCubic) * (u * u)));
  }
  template <class A>
  TAP_HD static A f(A x) {
    const A u = at_least_flat(x);
    return u * gate(u);
  }
  template <class A>
  TAP_HD static A df(A x) {
    using T = simd::Element<A>;
    const A u = within_flat(x);
    const A s = gate(u);
    return s + u * s * (T(1) - s) * (T(kTwice) + T(3 * kCubic) * (u * u));
  }
};

struct Abs {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::abs(x);
  }
  // x itself where it has no sign: 0 or NaN.
  template <class A>
  TAP_HD static A df(A x) {
    return simd::select(x > A{}, simd::constant<A>(1), simd::select(x < A{}, simd::constant<A>(-1), x));
  }
};

struct Sign {
  static constexpr Saves kSaves = Saves::nothing;
  template <class A>
  TAP_HD static A f(A x) {
    return Abs::df(x);
  }
  template <class A>
  TAP_HD static A df(A) {
    return A{};
  }
  template <class A>
  TAP_HD static A dx(A dy, A saved) {
    return chosen(dy, df(saved));
  }
};

// The derivative from x: 1 + y would lose all digits of a small exp(x).
struct Expm1 {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::expm1(x);
  }
  template <class A>
  TAP_HD static A df(A x) {
    return simd::exp(x);
  }
};

struct Log1p {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::log1p(x);
  }
  template <class A>
  TAP_HD static A df(A x) {
    using T = simd::Element<A>;
    return T(1) / (T(1) + x);
  }
};

// y = x^(-1/2); dy/dx = -y^3 / 2.
struct Rsqrt {
  static constexpr Saves kSaves = Saves::output;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::Element<A>(1) / simd::sqrt(x);
  }
  template <class A>
  TAP_HD static A df(A y) {
    return simd::Element<A>(-0.5) * y * (y * y);
  }
};

struct Sin {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::sin(x);
  }
  template <class A>
  TAP_HD static A df(A x) {
    return simd::cos(x);
  }
};

struct Cos {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::cos(x);
  }
  template <class A>
  TAP_HD static A df(A x) {
    return -simd::sin(x);
  }
};

struct Erf {
  static constexpr Saves kSaves = Saves::input;
  template <class A>
  TAP_HD static A f(A x) {
    return simd::erf(x);
  }
  template <class A>
  TAP_HD static A df(A x) {
    return simd::exp(-(x * x)) * simd::Element<A>(1.1283791670955125739);  // 2 / sqrt(pi)
  }
};

// ---- with numbers of their own

struct Affine {
  static constexpr Saves kSaves = Saves::nothing;
  double factor = 1, offset = 0;
  template <class A>
  TAP_HD A f(A x) const {
    using T = simd::Element<A>;
    return x * T(factor) + T(offset);
  }
  template <class A>
  TAP_HD A df(A) const {
    return simd::constant<A>(static_cast<simd::Element<A>>(factor));
  }
};

// y = numerator / x; dy/dx = -numerator / x^2, divided twice since x^2 could overflow.
struct Reciprocal {
  static constexpr Saves kSaves = Saves::input;
  double numerator = 1;
  template <class A>
  TAP_HD A f(A x) const {
    return simd::Element<A>(numerator) / x;
  }
  template <class A>
  TAP_HD A df(A x) const {
    return simd::Element<A>(-numerator) / x / x;
  }
};

// x^exponent. An exponent of 0 gives 1 with derivative 0, whatever x.
struct Power {
  static constexpr Saves kSaves = Saves::input;
  double exponent = 2;
  template <class A>
  TAP_HD static A raise(A x, double to) {
    using T = simd::Element<A>;
    if (to == 0) return simd::constant<A>(1);
    if (to == 1) return x;
    if (to == 2) return x * x;
    if (to == 3) return x * x * x;
    return simd::pow(x, simd::constant<A>(T(to)));
  }
  template <class A>
  TAP_HD A f(A x) const {
    return raise(x, exponent);
  }
  template <class A>
  TAP_HD A df(A x) const {
    if (exponent == 0) return A{};
    return simd::Element<A>(exponent) * raise(x, exponent - 1);
  }
  template <class A>
  TAP_HD A dx(A dy, A x) const {
    return exponent == 0 ? A{} : dy * df(x);
  }
};

struct Clamp {
  static constexpr Saves kSaves = Saves::input;
  double low = -1, high = 1;
  template <class A>
  TAP_HD A f(A x) const {
    using T = simd::Element<A>;
    return simd::min(simd::max(x, simd::constant<A>(T(low))), simd::constant<A>(T(high)));
  }
  template <class A>
  TAP_HD A df(A x) const {
    using T = simd::Element<A>;
    const auto outside = (x < T(low)) | (x > T(high));
    return simd::select(outside, A{}, simd::select(x == x, simd::constant<A>(1), x));
  }
  template <class A>
  TAP_HD A dx(A dy, A saved) const {
    return chosen(dy, df(saved));
  }
};

struct LeakyRelu {
  static constexpr Saves kSaves = Saves::input;
  double slope = 0.01;
  template <class A>
  TAP_HD A f(A x) const {
    return simd::select(x > A{}, x, x * simd::Element<A>(slope));
  }
  template <class A>
  TAP_HD A df(A x) const {
    using T = simd::Element<A>;
    const A flat = simd::constant<A>(T(slope));
    return simd::select(x > A{}, simd::constant<A>(1), simd::select(x == x, flat, x));
  }
};

// x above 0, alpha (exp(x) - 1) below.
struct Elu {
  static constexpr Saves kSaves = Saves::input;
  double alpha = 1;
  template <class A>
  TAP_HD A f(A x) const {
    return simd::select(x > A{}, x, simd::expm1(x) * simd::Element<A>(alpha));
  }
  template <class A>
  TAP_HD A df(A x) const {
    return simd::select(x > A{}, simd::constant<A>(1), simd::exp(x) * simd::Element<A>(alpha));
  }
};

// log(1 + exp(z)) / beta with z = beta x, as max(z, 0) + log1p(exp(-|z|)); dy/dx = sigmoid(z).
struct Softplus {
  static constexpr Saves kSaves = Saves::input;
  double beta = 1;
  template <class A>
  TAP_HD A f(A x) const {
    using T = simd::Element<A>;
    const A z = x * T(beta);
    return (simd::max(z, A{}) + simd::log1p(simd::exp(-simd::abs(z)))) / T(beta);
  }
  template <class A>
  TAP_HD A df(A x) const {
    return simd::sigmoid(x * simd::Element<A>(beta));
  }
};

}  // namespace tapestry::formula
