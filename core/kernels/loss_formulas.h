// The formulas of the elementwise losses: f is the loss, dx and dt its derivatives by input and target; p is the loss's
// parameter. A is double, float or a vector of them. Infinite inputs give the limits, NaN gives NaN.
#pragma once

#include "core/kernels/loss.h"
#include "core/kernels/simd_math.h"

namespace tapestry::formula {

// a b, but 0 where a is 0 and b infinite.
template <class A>
TAP_HD A product_or_zero(A a, A b) {
  return simd::select((a == A{}) & (b == b), A{}, a * b);
}

// (x - t)^2
struct Mse {
  template <class A>
  TAP_HD static A f(A x, A t, A) {
    return (x - t) * (x - t);
  }
  template <class A>
  TAP_HD static A dx(A x, A t, A) {
    return (x - t) + (x - t);
  }
  template <class A>
  TAP_HD static A dt(A x, A t, A) {
    return (t - x) + (t - x);
  }
};

// |x - t|; the derivative at 0 is 0.
struct L1 {
  template <class A>
  TAP_HD static A f(A x, A t, A) {
    return simd::abs(x - t);
  }
  template <class A>
  TAP_HD static A dx(A x, A t, A) {
    using T = simd::Element<A>;
    const A d = x - t;
    return simd::select(d > A{}, T(1), simd::select(d < A{}, T(-1), d));
  }
  template <class A>
  TAP_HD static A dt(A x, A t, A p) {
    return dx(t, x, p);
  }
};

// d = x - t clipped to [-p, p] is both the derivative and all that the loss needs: c (d - c / 2).
struct Huber {
  template <class A>
  TAP_HD static A f(A x, A t, A p) {
    const A clipped = dx(x, t, p);
    return clipped * ((x - t) - simd::Element<A>(0.5) * clipped);
  }
  template <class A>
  TAP_HD static A dx(A x, A t, A p) {
    return simd::max(simd::min(x - t, p), -p);
  }
  template <class A>
  TAP_HD static A dt(A x, A t, A p) {
    return dx(t, x, p);
  }
};

// (1 - t) softplus(x) + p t softplus(-x): max(x, 0) - x t + log1p(exp(-|x|)) for p = 1, without inf - inf.
struct BceWithLogits {
  // log(1 + exp(x)) without its max(x, 0).
  template <class A>
  TAP_HD static A softplus_tail(A x) {
    return simd::log1p(simd::exp(-simd::abs(x)));
  }
  template <class A>
  TAP_HD static A f(A x, A t, A p) {
    using T = simd::Element<A>;
    const A tail = softplus_tail(x);
    return product_or_zero(T(1) - t, simd::max(x, A{}) + tail) + product_or_zero(p * t, simd::max(-x, A{}) + tail);
  }
  template <class A>
  TAP_HD static A dx(A x, A t, A p) {
    using T = simd::Element<A>;
    const A e = simd::exp(-simd::abs(x));
    const A far = T(1) / (e + T(1)), near = e * far;
    const auto positive = x > A{};
    return (T(1) - t) * simd::select(positive, far, near) - p * t * simd::select(positive, near, far);
  }
  template <class A>
  TAP_HD static A dt(A x, A, A p) {
    const A tail = softplus_tail(x);
    return p * (simd::max(-x, A{}) + tail) - (simd::max(x, A{}) + tail);
  }
};

// t (log t - x), 0 where t is 0. The derivative by t = 0 is -inf, as the limit says.
struct KlDiv {
  template <class A>
  TAP_HD static A f(A x, A t, A) {
    return simd::select((t == A{}) & (x == x), A{}, t * (simd::log(t) - x));
  }
  template <class A>
  TAP_HD static A dx(A, A t, A) {
    return -t;
  }
  template <class A>
  TAP_HD static A dt(A x, A t, A) {
    return (simd::log(t) - x) + simd::Element<A>(1);
  }
};

}  // namespace tapestry::formula
