#include "autograd/ops.h"

namespace tapestry {

Var cast(const Var& x, DType dtype) {
  TAP_CHECK(x && is_floating(x.dtype()) && is_floating(dtype), "cast: from one floating type to another, not from ",
            x ? text_of(x.dtype()) : "an empty Var", " to ", dtype, "; Tensor::to converts integers, without gradient");
  if (x.dtype() == dtype) return x;
  return record(
      "cast", x.value().to(dtype), [](const Tensor& dy, Grad dx) { dx.pass(dy.to(dx.dtype())); }, x);
}

}  // namespace tapestry
