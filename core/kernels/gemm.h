// The matrix product on raw CPU memory that matmul, linear and attention stand on.
#pragma once

#include <cstdint>

namespace tapestry {

enum class GeluForm { erf, tanh };  // see gelu and gelu_tanh in autograd/ops.h

// c = op(a) op(b) + bias (+ c, or + residual), and gelu(c) beside it. Row-major; op transposes when the flag is set.
template <class T>
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;  // op(a) is m x k, op(b) is k x n, c is m x n
  bool transpose_a = false, transpose_b = false;
  const T* a = nullptr;
  const T* b = nullptr;
  T* c = nullptr;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // distance between rows as stored
  bool add = false;                        // add to c instead of overwriting it
  // What happens to a finished tile while it is in the cache; null pointers: nothing.
  const T* bias = nullptr;      // n values added to every row
  const T* residual = nullptr;  // laid out as c and added to it; not together with `add`
  T* gelu = nullptr;            // laid out as c: where gelu(c) goes
  GeluForm form = GeluForm::erf;
};

namespace cpu {
// Any sizes, 0 included (k = 0 writes the bias or zeros). The order in which a c element is summed depends on the shape
// only, never on the number of threads. gemm spreads one product over threads; gemm_serial stays in the caller's, for
// use inside parallel_for. Instantiated for float and double.
template <class T>
void gemm(const Gemm<T>& g);
template <class T>
void gemm_serial(const Gemm<T>& g);
}  // namespace cpu

}  // namespace tapestry
