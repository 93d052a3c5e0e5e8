#include "layers/dropout.h"

namespace tapestry {

Dropout::Dropout(double p) : p_(p) { TAP_CHECK(p >= 0 && p <= 1, "dropout: p must be in [0, 1], not ", p); }

Var Dropout::operator()(const Var& x) const {
  if (!active()) return x;
  return dropout(x, p_, next_random_key());
}

}  // namespace tapestry
