// Stochastic gradient descent with momentum.
#pragma once

#include "optim/optimizer.h"

namespace tapestry {

struct SgdOptions {
  double momentum = 0;  // velocity v = momentum v + g, at first g; the rate stays outside of it, as in PyTorch
  bool nesterov = false;
  double weight_decay = 0;  // added to the gradient (L2)
};
// p -= lr v, or with nesterov p -= lr (g + momentum v).
class Sgd : public Optimizer {
 public:
  explicit Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options = {});
  explicit Sgd(std::vector<NamedParameter> parameters, const SgdOptions& options = {});  // decay_matrices_only
  std::string_view name() const override { return "Sgd"; }

 private:
  void update(const Range& range) override;
  SgdOptions options_;
};

}  // namespace tapestry
