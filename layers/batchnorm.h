// BatchNorm over all axes but the channels of [N, C] or [N, C, L] (Ioffe & Szegedy 2015), with learned weight (ones)
// and bias (zeros). Training uses the batch's statistics and moves the running ones; eval mode uses those.
#pragma once

#include "autograd/module.h"
#include "autograd/ops.h"

namespace tapestry {

class BatchNorm1d : public Module {
 public:
  // momentum is the weight of the new batch: running = (1 - momentum) running + momentum batch.
  explicit BatchNorm1d(std::int64_t channels, double momentum = 0.1, double eps = 1e-5);
  Var operator()(const Var& x) const;  // training: changes what running_mean and running_var hold
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "BatchNorm1d"; }

  Parameter weight, bias;            // [C]
  Tensor running_mean, running_var;  // [C], zeros and ones at first; the variance is the unbiased estimate

 private:
  double momentum_, eps_;
};

}  // namespace tapestry
