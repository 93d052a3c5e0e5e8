// y[i] = op(a[i]) op(b[i]); backward is the same kind of product with the operands exchanged:
//   da = dy op(b)^T, or op(b) dy^T where a is stored transposed;  db = op(a)^T dy, or dy^T op(a) likewise.
// All three go through multiply_batches, which adds up the matrices that fall on one result in ascending batch order.
#include "core/kernels/matmul.h"

#include <algorithm>

#include "core/kernels/gemm.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

// Multiply-adds: one product of at least so many is spread over the threads itself.
constexpr std::int64_t kLargeProduct = 1 << 21, kWorkPerThread = 1 << 17;

using Strides = const std::int64_t*;

// The stored matrices of one operand: row length, elements per matrix, strides over the batch axes in matrices.
template <class T>
struct Matrices {
  T* data;
  std::int64_t columns, size;
  Strides strides;
};

// True where the operand is one matrix for the whole batch. The other two then have every batch axis, without gaps.
bool is_single(const Shape& batch, Strides strides) {
  for (int axis = 0; axis < batch.rank(); ++axis)
    if (batch[axis] != 1 && strides[axis] != 0) return false;
  return true;
}

// Some of the batch axes, counted through by one index in row-major order.
struct Axes {
  int rank = 0;
  std::int64_t count = 1;
  std::int64_t extent[Shape::kMaxRank], stride_a[Shape::kMaxRank], stride_b[Shape::kMaxRank], stride_c[Shape::kMaxRank];

  void append(std::int64_t n, std::int64_t a, std::int64_t b, std::int64_t c) {
    extent[rank] = n;
    stride_a[rank] = a;
    stride_b[rank] = b;
    stride_c[rank] = c;
    ++rank;
    count *= n;
  }
  std::int64_t offset(std::int64_t index, Strides strides) const {
    std::int64_t sum = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
      sum += index % extent[axis] * strides[axis];
      index /= extent[axis];
    }
    return sum;
  }
};

// c[i] = op(a[i]) op(b[i]) (+ c[i] where g.add) over the batch, summed where c has stride 0. g brings m, n, k of one
// product, the transposes and add.
template <class T>
void multiply_batches(const Shape& batch, Gemm<T> g, Matrices<const T> a, Matrices<const T> b, Matrices<T> c) {
  g.a = a.data, g.b = b.data, g.c = c.data;
  g.lda = a.columns, g.ldb = b.columns, g.ldc = c.columns;

  if (!g.transpose_a && is_single(batch, b.strides)) {
    g.m *= batch.numel();  // the batch is more rows of one product
    return gemm(g);
  }
  if (g.transpose_a && !g.transpose_b && is_single(batch, c.strides)) {
    g.k *= batch.numel();  // the batch is more terms of one sum
    return gemm(g);
  }

  Axes results, terms;
  for (int axis = 0; axis < batch.rank(); ++axis)
    (c.strides[axis] == 0 && batch[axis] != 1 ? terms : results)
        .append(batch[axis], a.strides[axis], b.strides[axis], c.strides[axis]);
  const std::int64_t work = g.m * g.n * g.k;
  const bool large = work >= kLargeProduct && results.count < 4 * num_threads();

  auto multiply = [&](std::int64_t result, auto&& product) {
    Gemm<T> one = g;
    one.c += results.offset(result, results.stride_c) * c.size;
    if (terms.count == 0) {
      one.k = 0;
      return product(one);
    }
    for (std::int64_t t = 0; t < terms.count; ++t) {
      one.a = g.a + (results.offset(result, results.stride_a) + terms.offset(t, terms.stride_a)) * a.size;
      one.b = g.b + (results.offset(result, results.stride_b) + terms.offset(t, terms.stride_b)) * b.size;
      one.add = g.add || t > 0;
      product(one);
    }
  };
  if (results.count == 1 || large) {
    for (std::int64_t i = 0; i < results.count; ++i) multiply(i, [](const Gemm<T>& one) { gemm(one); });
  } else {
    const std::int64_t grain = kWorkPerThread / std::max<std::int64_t>(1, work * terms.count) + 1;
    parallel_for(results.count, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) multiply(i, [](const Gemm<T>& one) { gemm_serial(one); });
    });
  }
}

}  // namespace

void matmul_forward(const Tensor& a, const Tensor& b, const MatmulLayout& layout, Tensor& y) {
  visit_float("matmul", y.dtype(), [&]<class T>(TypeTag<T>) {
    const auto [m, n, k] = std::tuple(layout.m, layout.n, layout.k);
    const bool ta = layout.transpose_a, tb = layout.transpose_b;
    const auto dense = layout.batch.strides();
    multiply_batches<T>(layout.batch, {.m = m, .n = n, .k = k, .transpose_a = ta, .transpose_b = tb},
                        {a.data<T>(), ta ? m : k, m * k, layout.stride_a},
                        {b.data<T>(), tb ? k : n, k * n, layout.stride_b},
                        {y.mutable_data<T>(), n, m * n, dense.data()});
  });
}

void matmul_backward(const Tensor& dy, const Tensor& a, const Tensor& b, const MatmulLayout& layout, Grad da, Grad db) {
  visit_float("matmul", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const auto [m, n, k] = std::tuple(layout.m, layout.n, layout.k);
    const bool ta = layout.transpose_a, tb = layout.transpose_b;
    const auto dense = layout.batch.strides();
    const std::int64_t columns_a = ta ? m : k, columns_b = tb ? k : n;
    const Matrices<const T> ys{dy.data<T>(), n, m * n, dense.data()};
    const Matrices<const T> as{a.data<T>(), columns_a, m * k, layout.stride_a};
    const Matrices<const T> bs{b.data<T>(), columns_b, k * n, layout.stride_b};
    if (da) {
      const bool add = da.claim();
      const Matrices<T> out{da.data<T>(), columns_a, m * k, layout.stride_a};
      if (ta)
        multiply_batches<T>(layout.batch, {.m = k, .n = m, .k = n, .transpose_a = tb, .transpose_b = true, .add = add},
                            bs, ys, out);
      else
        multiply_batches<T>(layout.batch, {.m = m, .n = k, .k = n, .transpose_b = !tb, .add = add}, ys, bs, out);
    }
    if (db) {
      const bool add = db.claim();
      const Matrices<T> out{db.data<T>(), columns_b, k * n, layout.stride_b};
      if (tb)
        multiply_batches<T>(layout.batch, {.m = n, .n = k, .k = m, .transpose_a = true, .transpose_b = ta, .add = add},
                            ys, as, out);
      else
        multiply_batches<T>(layout.batch, {.m = k, .n = n, .k = m, .transpose_a = !ta, .add = add}, as, ys, out);
    }
  });
}

}  // namespace tapestry::cpu
