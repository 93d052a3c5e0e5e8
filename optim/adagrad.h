// Adagrad (Duchi, Hazan & Singer 2011). The decay of its rate is a Schedule.
#pragma once

#include "optim/optimizer.h"

namespace tapestry {

struct AdagradOptions {
  double eps = 1e-10;
  double initial_sum = 0;   // that the squared gradients are added to
  double weight_decay = 0;  // added to the gradient (L2)
};
// sum += g^2; p -= lr g / (sqrt(sum) + eps).
class Adagrad : public Optimizer {
 public:
  explicit Adagrad(std::vector<ParameterGroup> groups, const AdagradOptions& options = {});
  explicit Adagrad(std::vector<NamedParameter> parameters, const AdagradOptions& options = {});  // decay_matrices_only
  std::string_view name() const override { return "Adagrad"; }

 private:
  void update(const Range& range) override;
  AdagradOptions options_;
};

}  // namespace tapestry
