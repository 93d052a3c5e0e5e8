// Adam and AdamW: one update, which differs only in where the decay goes.
#pragma once

#include "optim/optimizer.h"

namespace tapestry {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // decoupled: p -= lr * weight_decay * p
};
// Loshchilov & Hutter 2019: m, v moments, bias-corrected; p -= lr (mhat / (sqrt(vhat) + eps) + weight_decay p).
class AdamW : public Optimizer {
 public:
  explicit AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options = {});
  explicit AdamW(std::vector<NamedParameter> parameters, const AdamWOptions& options = {});  // decay_matrices_only
  std::string_view name() const override { return "AdamW"; }

 private:
  void update(const Range& range) override;
  AdamWOptions options_;
};

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;  // added to the gradient (L2), so that the moments see it
};
// Kingma & Ba 2015: p -= lr mhat / (sqrt(vhat) + eps).
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<ParameterGroup> groups, const AdamOptions& options = {});
  explicit Adam(std::vector<NamedParameter> parameters, const AdamOptions& options = {});  // decay_matrices_only
  std::string_view name() const override { return "Adam"; }

 private:
  void update(const Range& range) override;
  AdamOptions options_;
};

}  // namespace tapestry
