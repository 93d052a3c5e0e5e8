// Opening checks that several ops share: operands of one dtype; what weight, bias and statistics of a normalisation
// must look like beside x.
#pragma once

#include <initializer_list>
#include <string_view>

#include "autograd/autocast.h"
#include "autograd/var.h"

namespace tapestry::detail {

inline void check_one_dtype(std::string_view op, std::string_view names, DType a, DType b) {
  TAP_CHECK(a == b, op, ": ", names, " must have one dtype, not ", a, " and ", b, "; convert one with cast()");
}

// Whether v, a bias or residual, may stand beside x: alike, or f32 where an Autocast made x a 16-bit type.
inline bool fits_beside(const Var& x, const Var& v) {
  return v.dtype() == x.dtype() || (v.dtype() == DType::f32 && x.dtype() == Autocast::current());
}
inline void check_product_types(std::string_view op, const Var& x, const Var& weight, const Var& bias) {
  if (x.dtype() == weight.dtype() && (!bias || fits_beside(x, bias))) return;
  const bool low = is_16bit(x.dtype()) || is_16bit(weight.dtype());
  fail(op, ": x is ", x.dtype(), ", weight is ", weight.dtype(), bias ? text_of(" and bias is ", bias.dtype()) : "",
       "; all operands must have one dtype; convert with cast()", low ? ", or run it under an Autocast" : "");
}

// What stands beside x in a normalisation.
struct NamedVector {
  NamedVector(std::string_view name_, const Var& v) : NamedVector(name_, v.value()) {}
  NamedVector(std::string_view name_, const Tensor& t) : name(name_), shape(t.shape()), dtype(t.dtype()) {}
  std::string_view name;
  Shape shape;
  DType dtype;
};

// Throws unless every one of `vectors` is [n], of f64 exactly if x is, and eps is not negative.
inline void check_norm(std::string_view op, const Var& x, std::int64_t n, std::initializer_list<NamedVector> vectors,
                       double eps) {
  for (const NamedVector& v : vectors) {
    TAP_CHECK(v.shape == Shape{n}, op, ": x is ", x.shape(), ", so ", v.name, " must be [", n, "], not ", v.shape);
    TAP_CHECK(is_floating(v.dtype) && accumulate_dtype(v.dtype) == accumulate_dtype(x.dtype()), op, ": x is ",
              x.dtype(), ", so ", v.name, " must be ", accumulate_dtype(x.dtype()), ", not ", v.dtype,
              "; convert one with cast()");
  }
  TAP_CHECK(eps >= 0, op, ": eps must not be negative, not ", eps);
}
// Over the last axis.
inline void check_row_norm(std::string_view op, const Var& x, std::initializer_list<NamedVector> vectors, double eps) {
  TAP_CHECK(x.shape().rank() >= 1, op, ": x must have an axis to normalise over, not ", x.shape(),
            "; reshape it to [1]");
  check_norm(op, x, x.shape().back(), vectors, eps);
}
// By channel, x [N, C, ...].
inline void check_channel_norm(std::string_view op, const Var& x, std::initializer_list<NamedVector> vectors,
                               double eps) {
  TAP_CHECK(x.shape().rank() >= 2 && x.shape()[1] > 0, op, ": x must be [N, C, ...] with C at least 1, not ",
            x.shape());
  check_norm(op, x, x.shape()[1], vectors, eps);
}

}  // namespace tapestry::detail
