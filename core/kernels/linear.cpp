// Three matrix products, bias, residual and gelu done to the finished tiles, and column sums for db.
// x and W are needed again in backward; nothing else is.
#include "core/kernels/linear.h"

#include <algorithm>

#include "core/kernels/gemm.h"
#include "core/kernels/simd.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

// Adds up columns of x, kVectors vectors wide; only `count` columns exist where kVectors is 1. Blocks of rows have sums
// of their own, so the rounding error does not grow with the number of rows.
template <class T, int kVectors>
void sum_columns(const T* x, std::int64_t rows, std::int64_t stride, bool add, T* sums,
                 std::int64_t count = simd::kLanes<T>) {
  constexpr std::int64_t kBlock = 128;
  const bool full = count == simd::kLanes<T>;
  auto load = [&](const T* p) { return full ? simd::load(p) : simd::load_partial(p, count); };
  simd::Vec<T> total[kVectors] = {};
  for (std::int64_t first = 0; first < rows; first += kBlock) {
    simd::Vec<T> sum[kVectors] = {};
    for (std::int64_t i = first; i < std::min(first + kBlock, rows); ++i)
      for (int v = 0; v < kVectors; ++v) sum[v] += load(x + i * stride + v * simd::kLanes<T>);
    for (int v = 0; v < kVectors; ++v) total[v] += sum[v];
  }
  for (int v = 0; v < kVectors; ++v) {
    T* out = sums + v * simd::kLanes<T>;
    if (add) total[v] += load(out);
    full ? simd::store(out, total[v]) : simd::store_partial(out, total[v], count);
  }
}

// Threads own columns, so each is summed over the rows in order.
template <class T>
void column_sums(const T* x, std::int64_t rows, std::int64_t columns, bool add, T* sums) {
  constexpr int kVectors = 4;
  constexpr std::int64_t kStrip = kVectors * simd::kLanes<T>, kElementsPerThread = 1 << 15;
  const std::int64_t grain = kElementsPerThread / (kStrip * std::max<std::int64_t>(rows, 1)) + 1;
  parallel_for((columns + kStrip - 1) / kStrip, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t last = std::min(end * kStrip, columns);
    std::int64_t j = begin * kStrip;
    for (; j + kStrip <= last; j += kStrip) sum_columns<T, kVectors>(x + j, rows, columns, add, sums + j);
    for (; j < last; j += simd::kLanes<T>)
      sum_columns<T, 1>(x + j, rows, columns, add, sums + j, std::min<std::int64_t>(simd::kLanes<T>, last - j));
  });
}

template <class T>
Gemm<T> forward_product(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y) {
  const std::int64_t in = weight.shape()[0], out = weight.shape()[1];
  return {.m = x.shape().rows(),
          .n = out,
          .k = in,
          .a = x.data<T>(),
          .b = weight.data<T>(),
          .c = y.mutable_data<T>(),
          .lda = in,
          .ldb = out,
          .ldc = out,
          .bias = bias ? bias.data<T>() : nullptr};
}

}  // namespace

void linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual, Tensor& y) {
  visit_float("linear", y.dtype(), [&]<class T>(TypeTag<T>) {
    Gemm<T> product = forward_product<T>(x, weight, bias, y);
    if (residual) product.residual = residual.data<T>();
    gemm(product);
  });
}

void linear_gelu_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, GeluForm form, Tensor& h,
                         Tensor& y) {
  visit_float("linear_gelu", y.dtype(), [&]<class T>(TypeTag<T>) {
    Gemm<T> product = forward_product<T>(x, weight, bias, h);
    product.gelu = y.mutable_data<T>();
    product.form = form;
    gemm(product);
  });
}

void linear_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, Grad dx, Grad dweight, Grad dbias) {
  visit_float("linear", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const std::int64_t rows = dy.shape().rows(), in = weight.shape()[0], out = weight.shape()[1];
    if (dx) {
      const bool add = dx.claim();
      gemm<T>({.m = rows,
               .n = in,
               .k = out,
               .transpose_b = true,
               .a = dy.data<T>(),
               .b = weight.data<T>(),
               .c = dx.data<T>(),
               .lda = out,
               .ldb = out,
               .ldc = in,
               .add = add});
    }
    if (dweight) {
      const bool add = dweight.claim();
      gemm<T>({.m = in,
               .n = out,
               .k = rows,
               .transpose_a = true,
               .a = x.data<T>(),
               .b = dy.data<T>(),
               .c = dweight.data<T>(),
               .lda = in,
               .ldb = out,
               .ldc = out,
               .add = add});
    }
    if (dbias) {
      const bool add = dbias.claim();
      column_sums(dy.data<T>(), rows, out, add, dbias.data<T>());
    }
  });
}

}  // namespace tapestry::cpu
