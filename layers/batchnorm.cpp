#include "layers/batchnorm.h"

#include "layers/init.h"

namespace tapestry {

BatchNorm1d::BatchNorm1d(std::int64_t channels, double momentum, double eps)
    : weight({channels}), bias({channels}), momentum_(momentum), eps_(eps) {
  TAP_CHECK(channels > 0, "batchnorm: channels must be at least 1, not ", channels);
  TAP_CHECK(momentum >= 0 && momentum <= 1, "batchnorm: momentum, the weight of the new batch, must be in [0, 1], not ",
            momentum);
  TAP_CHECK(eps >= 0, "batchnorm: eps must be 0 or more, not ", eps);
  init::constant(weight, 1);
  running_mean = zeros({channels});
  running_var = full({channels}, 1);
}

Var BatchNorm1d::operator()(const Var& x) const {
  const int rank = x.shape().rank();
  TAP_CHECK(rank == 2 || rank == 3, "batchnorm: x must be [N, C] or [N, C, L], not ", x.shape());
  return batchnorm(x, weight, bias, running_mean, running_var, training(), momentum_, eps_);
}

void BatchNorm1d::visit(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
  v("running_mean", running_mean);
  v("running_var", running_var);
}

}  // namespace tapestry
