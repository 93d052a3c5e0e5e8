// The way back into the residual stream, which every block takes twice.
#pragma once

#include "layers/dropout.h"
#include "layers/linear.h"

namespace tapestry {

// residual + dropout(out(x)), in one pass where dropout is off; an empty residual means none.
inline Var project(const Linear& out, const Dropout& dropout, const Var& x, const Var& residual) {
  if (!dropout.active()) return out(x, residual);
  const Var y = dropout(out(x));
  return residual ? residual + y : y;
}

}  // namespace tapestry
