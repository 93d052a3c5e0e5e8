// LayerNorm over the last axis with learned weight (ones) and bias (zeros), as Ba et al. 2016.
#pragma once

#include "autograd/module.h"
#include "autograd/ops.h"

namespace tapestry {

class LayerNorm : public Module {
 public:
  explicit LayerNorm(std::int64_t channels, double eps = 1e-5, LayerNormForm form = LayerNormForm::variance_plus_eps);
  LayerNorm(std::int64_t channels, LayerNormForm form);  // with its usual eps: 1e-5, or 1e-6 for std_plus_eps
  Var operator()(const Var& x) const;
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "LayerNorm"; }

  Parameter weight, bias;  // [C]

 private:
  double eps_;
  LayerNormForm form_;
};

}  // namespace tapestry
