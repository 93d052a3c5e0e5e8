// RMSprop (Tieleman & Hinton 2012), as in PyTorch.
#pragma once

#include "optim/optimizer.h"

namespace tapestry {

struct RmsPropOptions {
  double alpha = 0.99, eps = 1e-8;
  double momentum = 0;      // velocity = momentum velocity + g / root; the rate stays outside of it
  bool centered = false;    // divide by the deviation from the running mean
  double weight_decay = 0;  // added to the gradient (L2)
};
// v = alpha v + (1 - alpha) g^2, not bias-corrected; p -= lr g / (sqrt(v) + eps).
class RmsProp : public Optimizer {
 public:
  explicit RmsProp(std::vector<ParameterGroup> groups, const RmsPropOptions& options = {});
  explicit RmsProp(std::vector<NamedParameter> parameters, const RmsPropOptions& options = {});  // decay_matrices_only
  std::string_view name() const override { return "RmsProp"; }

 private:
  void update(const Range& range) override;
  RmsPropOptions options_;
};

}  // namespace tapestry
