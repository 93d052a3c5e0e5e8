// The formulas of the pointwise functions of two inputs. f is the function; da and db are the gradients of a and b,
// given that of the result. A is double, float or a vector of them.
#pragma once

#include "core/kernels/pointwise.h"
#include "core/kernels/simd_math.h"

namespace tapestry::formula {

// Which operands a gradient of a binary formula reads; the others may be empty handles in backward.
struct Reads {
  bool a, b;
};

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

// a^b. da = b a^(b-1), 0 where b is 0; db = a^b log(a), 0 where a is 0 or infinite and a^b vanishes, and where both are
// 0.
struct Pow {
  static constexpr Reads kDaReads{true, true}, kDbReads{true, true};
  template <class A>
  TAP_HD static A f(A a, A b) {
    return simd::pow(a, b);
  }
  template <class A>
  TAP_HD static A da(A dy, A a, A b) {
    return simd::select(b == A{}, A{}, dy * b * simd::pow(a, b - simd::Element<A>(1)));
  }
  template <class A>
  TAP_HD static A db(A dy, A a, A b) {
    const A y = simd::pow(a, b);
    const auto zero = (a >= A{}) & ((y == A{}) | ((a == A{}) & (b == A{})));
    return simd::select(zero, A{}, dy * y * simd::log(a));
  }
};

// The share of dy that an operand gets: all of it where it won, half where both are equal, NaN where either is NaN.
template <class Mask, class A>
TAP_HD A share(Mask won, Mask lost, A dy, A a, A b) {
  const A tie = simd::select(a == b, dy * simd::Element<A>(0.5), a + b);
  return simd::select(won, dy, simd::select(lost, A{}, tie));
}

struct Minimum {
  static constexpr Reads kDaReads{true, true}, kDbReads{true, true};
  template <class A>
  TAP_HD static A f(A a, A b) {
    return simd::min(a, b);
  }
  template <class A>
  TAP_HD static A da(A dy, A a, A b) {
    return share(a<b, a> b, dy, a, b);
  }
  template <class A>
  TAP_HD static A db(A dy, A a, A b) {
    return share(a > b, a < b, dy, a, b);
  }
};

struct Maximum {
  static constexpr Reads kDaReads{true, true}, kDbReads{true, true};
  template <class A>
  TAP_HD static A f(A a, A b) {
    return simd::max(a, b);
  }
  template <class A>
  TAP_HD static A da(A dy, A a, A b) {
    return share(a > b, a < b, dy, a, b);
  }
  template <class A>
  TAP_HD static A db(A dy, A a, A b) {
    return share(a<b, a> b, dy, a, b);
  }
};

}  // namespace tapestry::formula
