// The formulas of the pointwise functions. f is the function; df is its derivative, from the one value that kSaves
// names (with Saves::nothing it does not depend on its argument). A is double, float or a vector of them.
// Finite x, however large, gives a finite derivative; infinities give the limits; NaN gives NaN.
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

// Which operands a gradient of a binary formula reads; the others may be empty handles in backward.
struct Reads {
  bool a, b;
};

// da and db are the gradients of a and b, given that of the result.
struct Add {
  static constexpr Reads kDaReads{false, false}, kDbReads{false, false};
  template <class A>
  TAP_HD static A f(A a, A b) {
    return a + b;
  }
  template <class A>
  TAP_HD static A da(A dy, A, A) {
    return dy;
  }
  template <class A>
  TAP_HD static A db(A dy, A, A) {
    return dy;
  }
};

struct Sub {
  static constexpr Reads kDaReads{false, false}, kDbReads{false, false};
  template <class A>
  TAP_HD static A f(A a, A b) {
    return a - b;
  }
  template <class A>
  TAP_HD static A da(A dy, A, A) {
    return dy;
  }
  template <class A>
  TAP_HD static A db(A dy, A, A) {
    return -dy;
  }
};

struct Mul {
  static constexpr Reads kDaReads{false, true}, kDbReads{true, false};
  template <class A>
  TAP_HD static A f(A a, A b) {
    return a * b;
  }
  template <class A>
  TAP_HD static A da(A dy, A, A b) {
    return dy * b;
  }
  template <class A>
  TAP_HD static A db(A dy, A a, A) {
    return dy * a;
  }
};

struct Div {
  static constexpr Reads kDaReads{false, true}, kDbReads{true, true};
  template <class A>
  TAP_HD static A f(A a, A b) {
    return a / b;
  }
  template <class A>
  TAP_HD static A da(A dy, A, A b) {
    return dy / b;
  }
  // Divided twice: b * b could overflow.
  template <class A>
  TAP_HD static A db(A dy, A a, A b) {
    return -dy * (a / b) / b;
  }
};

}  // namespace tapestry::formula
