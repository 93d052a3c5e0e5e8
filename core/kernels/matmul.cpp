// y[i] = op(a[i]) op(b[i]); backward is the same kind of product with the operands exchanged:
//   da = dy op(b)^T, or op(b) dy^T where a is stored transposed;  db = op(a)^T dy, or dy^T op(a) likewise.
// All three go through multiply_batches, which adds up the matrices that fall on one result in ascending batch order,
// in f32 if the result has 16 bits.
#include "core/kernels/matmul.h"

#include <algorithm>

#include "core/kernels/gemm_kernel.h"
#include "core/kernels/products.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

// Multiply-adds: one product of at least so many is spread over the threads itself.
constexpr std::int64_t kLargeProduct = 1 << 21, kWorkPerThread = 1 << 17;

using Strides = const std::int64_t*;

// The stored matrices of one operand: row length, elements per matrix, strides over the batch axes in matrices.
template <class Pointer>
struct Matrices {
  Pointer data;
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

// Where the product that is the t-th of `count` terms of g's result goes; `add` says whether they are added to c.
template <class T>
void set_target(Gemm<T>& g, bool add, std::int64_t t, std::int64_t) {
  g.add = add || t > 0;
}
// Sums of several terms are kept in f32 until the last one, with which they are rounded.
void set_target(MixedGemm& g, bool add, std::int64_t t, std::int64_t count) {
  static thread_local detail::Scratch<float> memory;
  g.add = add || t > 0;
  if (count == 1 || g.c.dtype == DType::f32) return;
  const Floats sums{reinterpret_cast<std::byte*>(memory.get(g.m * g.ldc)), DType::f32};
  if (t == 0 && add) g.residual = g.c;
  if (t + 1 == count) g.residual = sums;
  g.add = t > 0 && t + 1 < count;
  if (t + 1 < count) g.c = sums;
}

// c[i] = op(a[i]) op(b[i]) (+ c[i] where g.add) over the batch, summed where c has stride 0. g brings m, n, k of one
// product, the transposes and add.
template <class Product, class In, class Out>
void multiply_batches(const Shape& batch, Product g, Matrices<In> a, Matrices<In> b, Matrices<Out> c) {
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
    const Out target = g.c + results.offset(result, results.stride_c) * c.size;
    for (std::int64_t t = 0; t < std::max<std::int64_t>(terms.count, 1); ++t) {
      Product one = g;
      one.c = target;
      if (terms.count == 0) {
        one.k = 0;
      } else {
        one.a = g.a + (results.offset(result, results.stride_a) + terms.offset(t, terms.stride_a)) * a.size;
        one.b = g.b + (results.offset(result, results.stride_b) + terms.offset(t, terms.stride_b)) * b.size;
      }
      set_target(one, g.add, t, terms.count);
      product(one);
    }
  };
  if (results.count == 1 || large) {
    for (std::int64_t i = 0; i < results.count; ++i) multiply(i, [](const Product& one) { gemm(one); });
  } else {
    const std::int64_t grain = kWorkPerThread / std::max<std::int64_t>(1, work * terms.count) + 1;
    parallel_for(results.count, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) multiply(i, [](const Product& one) { gemm_serial(one); });
    });
  }
}

}  // namespace

void matmul_forward(const Tensor& a, const Tensor& b, const MatmulLayout& layout, Tensor& y) {
  const auto run = [&]<class Kind>(Kind) {
    using Product = typename Kind::Product;
    const auto [m, n, k] = std::tuple(layout.m, layout.n, layout.k);
    const bool ta = layout.transpose_a, tb = layout.transpose_b;
    const auto dense = layout.batch.strides();
    multiply_batches(layout.batch, Product{.m = m, .n = n, .k = k, .transpose_a = ta, .transpose_b = tb},
                     Matrices{Kind::in(a), ta ? m : k, m * k, layout.stride_a},
                     Matrices{Kind::in(b), tb ? k : n, k * n, layout.stride_b},
                     Matrices{Kind::out(y), n, m * n, dense.data()});
  };
  visit_products("matmul", a.dtype(), run, b, y);
}

void matmul_backward(const Tensor& dy, const Tensor& a, const Tensor& b, const MatmulLayout& layout, Grad da, Grad db) {
  const auto run = [&]<class Kind>(Kind) {
    using Product = typename Kind::Product;
    const auto [m, n, k] = std::tuple(layout.m, layout.n, layout.k);
    const bool ta = layout.transpose_a, tb = layout.transpose_b;
    const auto dense = layout.batch.strides();
    const std::int64_t columns_a = ta ? m : k, columns_b = tb ? k : n;
    const Matrices ys{Kind::in(dy), n, m * n, dense.data()};
    const Matrices as{Kind::in(a), columns_a, m * k, layout.stride_a};
    const Matrices bs{Kind::in(b), columns_b, k * n, layout.stride_b};
    if (da) {
      const bool add = da.claim();
      const Matrices out{Kind::out(da.tensor()), columns_a, m * k, layout.stride_a};
      if (ta)
        multiply_batches(layout.batch,
                         Product{.m = k, .n = m, .k = n, .transpose_a = tb, .transpose_b = true, .add = add}, bs, ys,
                         out);
      else
        multiply_batches(layout.batch, Product{.m = m, .n = k, .k = n, .transpose_b = !tb, .add = add}, ys, bs, out);
    }
    if (db) {
      const bool add = db.claim();
      const Matrices out{Kind::out(db.tensor()), columns_b, k * n, layout.stride_b};
      if (tb)
        multiply_batches(layout.batch,
                         Product{.m = n, .n = k, .k = m, .transpose_a = true, .transpose_b = ta, .add = add}, ys, as,
                         out);
      else
        multiply_batches(layout.batch, Product{.m = k, .n = n, .k = m, .transpose_a = !ta, .add = add}, as, ys, out);
    }
  };
  visit_products("matmul", a.dtype(), run, dy, b, da, db);
}

}  // namespace tapestry::cpu
