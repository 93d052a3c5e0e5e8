// LAMB (You et al. 2020): Adam with a rate for each parameter, for very large batches.
#pragma once

#include "optim/optimizer.h"

namespace tapestry {

struct LambOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  double weight_decay = 0.01;  // a part of the direction u
};
// u = mhat / (sqrt(vhat) + eps) + weight_decay p; p -= lr (|p| / |u|) u, the ratio of norms 1 where one of them is 0.
class Lamb : public Optimizer {
 public:
  explicit Lamb(std::vector<ParameterGroup> groups, const LambOptions& options = {});
  explicit Lamb(std::vector<NamedParameter> parameters, const LambOptions& options = {});  // decay_matrices_only
  std::string_view name() const override { return "Lamb"; }

 private:
  void update(const Range& range) override;
  LambOptions options_;
};

}  // namespace tapestry
