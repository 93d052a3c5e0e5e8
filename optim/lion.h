// Lion (Chen et al. 2023): the sign of a momentum. Takes a rate 3 to 10 times smaller than AdamW, and a decay as much
// larger.
#pragma once

#include "optim/optimizer.h"

namespace tapestry {

struct LionOptions {
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0.01;  // decoupled: p -= lr * weight_decay * p
};
// p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p); m = beta2 m + (1 - beta2) g.
class Lion : public Optimizer {
 public:
  explicit Lion(std::vector<ParameterGroup> groups, const LionOptions& options = {});
  explicit Lion(std::vector<NamedParameter> parameters, const LionOptions& options = {});  // decay_matrices_only
  std::string_view name() const override { return "Lion"; }

 private:
  void update(const Range& range) override;
  LionOptions options_;
};

}  // namespace tapestry
