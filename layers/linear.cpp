#include "layers/linear.h"

#include "layers/init.h"

namespace tapestry {

Linear::Linear(std::int64_t in, std::int64_t out, Rng& rng, bool with_bias) : weight({in, out}) {
  TAP_CHECK(in > 0 && out > 0, "linear: in and out must be at least 1, not ", in, " and ", out);
  if (with_bias) bias.emplace(Shape{out});
  init::xavier_uniform(weight, rng);
}

Var Linear::operator()(const Var& x, const Var& residual) const {
  return linear(x, weight, bias ? Var(*bias) : Var(), residual);
}

void Linear::visit(Visitor& v) {
  v("weight", weight);
  if (bias) v("bias", *bias);
}

}  // namespace tapestry
