// The matrix product on raw CPU memory for operands of 16 bits: every array brings its own element type, sums are kept
// in fp32, and a result of 16 bits is rounded once.
#pragma once

#include "core/kernels/floats.h"
#include "core/kernels/gemm.h"

namespace tapestry {

// c = op(a) op(b) + bias (+ c, or + residual), and gelu beside it: as Gemm, with a type for each array. All that is
// added is added in fp32 before c is rounded; gelu is that of the rounded c, which is what backward will see.
struct MixedGemm {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  ConstFloats a = {}, b = {};
  Floats c = {};
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  bool add = false;
  ConstFloats bias = {}, residual = {};
  Floats gelu = {};
  GeluForm form = GeluForm::erf;
};

namespace cpu {
// Any sizes; the same bits for any number of threads, as gemm and gemm_serial of one type.
// Where a or b is bf16 and the processor has AVX512-BF16, a product of more than one row multiplies by vdpbf16ps: the
// other operand is rounded to bf16 if it is f32, each of two terms is added with a rounding of its own, and subnormal
// operands and sums count as zero (only there: results of 16 bits keep theirs). Everything else is exact conversion to
// fp32 and the fp32 product.
void gemm(const MixedGemm& g);
void gemm_serial(const MixedGemm& g);
}  // namespace cpu

}  // namespace tapestry
