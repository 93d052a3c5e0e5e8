#include "core/kernels/triangle.h"

#include "autograd/ops.h"

namespace tapestry {

namespace {

Var triangle(const char* op, const Var& x, bool lower, std::int64_t diagonal) {
  TAP_CHECK(x.shape().rank() >= 2, op, ": x needs rank 2 or more, not ", x.shape(),
            "; reshape it to a matrix, or expand it to one");
  Tensor y = empty_like(x.value());
  TAP_DISPATCH(triangle_forward, x.value(), lower, diagonal, y);
  return record(
      op, y, [lower, diagonal](const Tensor& dy, Grad dx) { TAP_DISPATCH(triangle_backward, dy, lower, diagonal, dx); },
      x);
}

}  // namespace

Var tril(const Var& x, std::int64_t diagonal) { return triangle("tril", x, true, diagonal); }
Var triu(const Var& x, std::int64_t diagonal) { return triangle("triu", x, false, diagonal); }

}  // namespace tapestry
