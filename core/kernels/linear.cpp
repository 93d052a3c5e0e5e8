// Three matrix products, bias, residual and gelu done to the finished tiles, and column sums for db.
// x and W are needed again in backward; nothing else is. 16 bits are read and written in place, summed up in f32.
#include "core/kernels/linear.h"

#include <algorithm>

#include "core/kernels/products.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

// The first `count` elements of memory that holds S, as a vector of T, the type of sums.
template <class T>
simd::Vec<T> load_as(const T* p, std::int64_t count) {
  return simd::load_partial(p, count);
}
template <class T, simd::SixteenBit S>
simd::Vec<T> load_as(const S* p, std::int64_t count) {
  return simd::load_wide_partial(p, count);
}

template <class T>
void write_sums(T* to, simd::Vec<T> sums, std::int64_t count, bool add) {
  if (add) sums += simd::load_partial(to, count);
  simd::store_partial(to, sums, count);
}
void write_sums(Floats to, simd::Vec<float> sums, std::int64_t count, bool add) {
  if (add) sums += simd::load_floats(to, count);
  simd::store_floats(to, sums, count);
}

// Adds up columns of x, kVectors vectors wide; only `count` columns exist where kVectors is 1. Blocks of rows have sums
// of their own, so the rounding error does not grow with the number of rows.
template <class T, int kVectors, class S, class Out, class Count>
void sum_columns(const S* x, std::int64_t rows, std::int64_t stride, bool add, Out sums, Count count) {
  constexpr std::int64_t kBlock = 128;
  simd::Vec<T> total[kVectors] = {};
  for (std::int64_t first = 0; first < rows; first += kBlock) {
    simd::Vec<T> sum[kVectors] = {};
    for (std::int64_t i = first; i < std::min(first + kBlock, rows); ++i)
      for (int v = 0; v < kVectors; ++v) sum[v] += load_as<T>(x + i * stride + v * simd::kLanes<T>, count);
    for (int v = 0; v < kVectors; ++v) total[v] += sum[v];
  }
  for (int v = 0; v < kVectors; ++v) write_sums(sums + v * simd::kLanes<T>, total[v], count, add);
}

// Threads own columns, so each is summed over the rows in order.
template <class T, class S, class Out>
void column_sums(const S* x, std::int64_t rows, std::int64_t columns, bool add, Out sums) {
  constexpr int kVectors = 4;
  constexpr std::integral_constant<std::int64_t, simd::kLanes<T>> kLanes;
  constexpr std::int64_t kStrip = kVectors * kLanes, kElementsPerThread = 1 << 15;
  const std::int64_t grain = kElementsPerThread / (kStrip * std::max<std::int64_t>(rows, 1)) + 1;
  parallel_for((columns + kStrip - 1) / kStrip, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t last = std::min(end * kStrip, columns);
    std::int64_t j = begin * kStrip;
    for (; j + kStrip <= last; j += kStrip) sum_columns<T, kVectors>(x + j, rows, columns, add, sums + j, kLanes);
    for (; j < last; j += kLanes)
      sum_columns<T, 1>(x + j, rows, columns, add, sums + j, std::min<std::int64_t>(kLanes, last - j));
  });
}

template <class T>
void column_sums(const T* x, std::int64_t rows, std::int64_t columns, bool add, T* sums) {
  column_sums<T, T, T*>(x, rows, columns, add, sums);
}
void column_sums(ConstFloats x, std::int64_t rows, std::int64_t columns, bool add, Floats sums) {
  visit_floats(x, [&](auto* from) { column_sums<float>(from, rows, columns, add, sums); });
}

template <class Kind>
typename Kind::Product forward_product(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y) {
  const std::int64_t in = weight.shape()[0], out = weight.shape()[1];
  return {.m = x.shape().rows(),
          .n = out,
          .k = in,
          .a = Kind::in(x),
          .b = Kind::in(weight),
          .c = Kind::out(y),
          .lda = in,
          .ldb = out,
          .ldc = out,
          .bias = Kind::in(bias)};
}

}  // namespace

void linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual, Tensor& y) {
  const auto run = [&]<class Kind>(Kind) {
    auto product = forward_product<Kind>(x, weight, bias, y);
    product.residual = Kind::in(residual);
    gemm(product);
  };
  visit_products("linear", x.dtype(), run, weight, bias, residual, y);
}

void linear_gelu_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, GeluForm form, Tensor& h,
                         Tensor& y) {
  const auto run = [&]<class Kind>(Kind) {
    auto product = forward_product<Kind>(x, weight, bias, h);
    product.gelu = Kind::out(y);
    product.form = form;
    gemm(product);
  };
  visit_products("linear_gelu", x.dtype(), run, weight, bias, h, y);
}

void linear_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, Grad dx, Grad dweight, Grad dbias) {
  const auto run = [&]<class Kind>(Kind) {
    using Product = typename Kind::Product;
    const std::int64_t rows = dy.shape().rows(), in = weight.shape()[0], out = weight.shape()[1];
    if (dx) {
      const bool add = dx.claim();
      gemm(Product{.m = rows,
                   .n = in,
                   .k = out,
                   .transpose_b = true,
                   .a = Kind::in(dy),
                   .b = Kind::in(weight),
                   .c = Kind::out(dx.tensor()),
                   .lda = out,
                   .ldb = out,
                   .ldc = in,
                   .add = add});
    }
    if (dweight) {
      const bool add = dweight.claim();
      gemm(Product{.m = in,
                   .n = out,
                   .k = rows,
                   .transpose_a = true,
                   .a = Kind::in(x),
                   .b = Kind::in(dy),
                   .c = Kind::out(dweight.tensor()),
                   .lda = in,
                   .ldb = out,
                   .ldc = out,
                   .add = add});
    }
    if (dbias) {
      const bool add = dbias.claim();
      column_sums(Kind::in(dy), rows, out, add, Kind::out(dbias.tensor()));
    }
  };
  visit_products("linear", x.dtype(), run, dy, weight, dx, dweight, dbias);
}

}  // namespace tapestry::cpu
