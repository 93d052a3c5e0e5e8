// LayerNorm over the last axis with learned weight (ones) and bias (zeros), as Ba et al. 2016.
#pragma once

#include "autograd/module.h"
#include "autograd/ops.h"

namespace tapestry {

class LayerNorm : public Module {
 public:
  explicit LayerNorm(std::int64_t channels, double eps = 1e-5);
  Var operator()(const Var& x) const;
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "LayerNorm"; }

  Parameter weight, bias;  // [C]

 private:
  double eps_;
};

}  // namespace tapestry
