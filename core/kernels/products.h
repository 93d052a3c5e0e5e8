// Tensors as the operands of matrix products: one code for Gemm<T>, where all of them hold T, and for MixedGemm, where
// some hold 16 bits. A kernel is templated on the kind and gets it from visit_products.
#pragma once

#include "core/kernels/gemm_mixed.h"
#include "core/tensor.h"

namespace tapestry::cpu {

template <class T>
struct PlainProducts {
  using Product = Gemm<T>;
  using In = const T*;
  using Out = T*;
  static In in(const Tensor& t) { return t ? t.data<T>() : nullptr; }
  static Out out(Tensor& t) { return t.mutable_data<T>(); }
};

struct MixedProducts {
  using Product = MixedGemm;
  using In = ConstFloats;
  using Out = Floats;
  static In in(const Tensor& t) {
    if (t) check(t);
    return t ? In{t.raw_data(), t.dtype()} : In{};
  }
  static Out out(Tensor& t) {
    check(t);
    return {t.mutable_raw_data(), t.dtype()};
  }
  static void check(const Tensor& t) {
    TAP_CHECK(t.dtype() == DType::f32 || is_16bit(t.dtype()), "matrix product: f16 and bf16 go with f32, not with ",
              t.dtype());
  }
};

// Calls f(kind) with the kind for these tensors and gradients, any of which may be empty; `dtype` is that of the
// operands.
template <class F, class... T>
void visit_products(std::string_view op, DType dtype, F&& f, const T&... others) {
  if (is_16bit(dtype) || ((others && is_16bit(others.dtype())) || ...)) return f(MixedProducts());
  visit_float(op, dtype, [&]<class E>(TypeTag<E>) { f(PlainProducts<E>()); });
}

}  // namespace tapestry::cpu
