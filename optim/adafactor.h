// Adafactor (Shazeer & Stern 2018), without momentum: second moments as one row and one column for each matrix.
#pragma once

#include "optim/optimizer.h"

namespace tapestry {

struct AdafactorOptions {
  double beta2_decay = 0.8;    // the second moments keep 1 - t^-beta2_decay in update t
  double eps1 = 1e-30;         // added to the squared gradients
  double eps2 = 1e-3;          // least scale of a parameter
  double clip = 1;             // largest root mean square of an update before the rate
  bool relative_step = true;   // the rate is min(lr, 1 / sqrt(t)), else lr
  bool scale_by_value = true;  // times max(eps2, rms(p))
  double weight_decay = 0;     // decoupled: p -= lr * weight_decay * p
};
// See core/kernels/adafactor.h for the formula. As torch.optim.Adafactor, where eps1 is negligible.
class Adafactor : public Optimizer {
 public:
  explicit Adafactor(std::vector<ParameterGroup> groups, const AdafactorOptions& options = {});
  explicit Adafactor(std::vector<NamedParameter> parameters,
                     const AdafactorOptions& options = {});  // decay_matrices_only
  std::string_view name() const override { return "Adafactor"; }

 private:
  void update(const Range& range) override;
  AdafactorOptions options_;
};

}  // namespace tapestry
