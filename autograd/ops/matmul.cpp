#include "core/kernels/matmul.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"

namespace tapestry {

namespace {

// The axes before the matrix; a vector has none.
Shape leading(const Shape& s) { return Shape(s.dims().first(s.dims().size() < 2 ? 0 : s.dims().size() - 2)); }

// Strides over the batch axes of y, in matrices; 0 where the operand broadcasts.
void batch_strides(const Shape& own, const Shape& batch, std::int64_t* strides) {
  const auto packed = own.strides();
  for (int i = 1; i <= batch.rank(); ++i)
    strides[batch.rank() - i] = i > own.rank() || own[-i] == 1 ? 0 : packed[own.rank() - i];
}

MatmulLayout plan(const Var& a, const Var& b, bool transpose_a, bool transpose_b) {
  const Shape &sa = a.shape(), &sb = b.shape();
  const bool vector_a = sa.rank() == 1, vector_b = sb.rank() == 1;
  TAP_CHECK(sa.rank() >= 1 && sb.rank() >= 1, "matmul: operands need rank 1 or more, not ", sa, " and ", sb,
            "; mul multiplies by a scalar");
  TAP_CHECK(!(vector_a && transpose_a) && !(vector_b && transpose_b), "matmul: a vector cannot be transposed, given ",
            sa, transpose_a ? " (transposed)" : "", " x ", sb, transpose_b ? " (transposed)" : "",
            "; leave its flag out");
  detail::check_one_dtype("matmul", "operands", a.dtype(), b.dtype());
  MatmulLayout l;
  l.transpose_a = transpose_a;
  l.transpose_b = transpose_b;
  l.m = vector_a ? 1 : sa[transpose_a ? -1 : -2];
  l.k = sa[transpose_a ? -2 : -1];
  l.n = vector_b ? 1 : sb[transpose_b ? -2 : -1];
  const std::int64_t k = vector_b ? sb[0] : sb[transpose_b ? -1 : -2];
  TAP_CHECK(l.k == k, "matmul: the inner extents must be equal, but ", sa, transpose_a ? " (transposed)" : "", " x ",
            sb, transpose_b ? " (transposed)" : "", " has ", l.k, " and ", k);
  l.batch = broadcast("matmul", leading(sa), leading(sb));
  batch_strides(leading(sa), l.batch, l.stride_a);
  batch_strides(leading(sb), l.batch, l.stride_b);
  return l;
}

}  // namespace

Var matmul(const Var& a_, const Var& b_, bool transpose_a, bool transpose_b) {
  const auto [a, b] = detail::autocast<"matmul", detail::kParameters>(a_, b_);
  const MatmulLayout layout = plan(a, b, transpose_a, transpose_b);
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::size_t rank = layout.batch.dims().size();
  std::copy(layout.batch.dims().begin(), layout.batch.dims().end(), dims.begin());
  if (a.shape().rank() > 1) dims[rank++] = layout.m;
  if (b.shape().rank() > 1) dims[rank++] = layout.n;
  Tensor y = empty(Shape(std::span<const std::int64_t>(dims.data(), rank)), a.dtype(), a.device());
  TAP_DISPATCH(matmul_forward, a.value(), b.value(), layout, y);
  return record(
      "matmul", y,
      [a = save(a), b = save(b), layout](const Tensor& dy, Grad da, Grad db) {
        TAP_DISPATCH(matmul_backward, dy, a(), b(), layout, da, db);
      },
      a, b);
}

}  // namespace tapestry
