// RMSNorm over the last axis with learned weight (ones), as Zhang & Sennrich 2019.
#pragma once

#include "autograd/module.h"
#include "autograd/ops.h"

namespace tapestry {

class RMSNorm : public Module {
 public:
  explicit RMSNorm(std::int64_t channels, double eps = 1e-5);
  Var operator()(const Var& x) const { return rmsnorm(x, weight, eps_); }
  void visit(Visitor& v) override { v("weight", weight); }
  std::string_view kind() const override { return "RMSNorm"; }

  Parameter weight;  // [C]

 private:
  double eps_;
};

}  // namespace tapestry
