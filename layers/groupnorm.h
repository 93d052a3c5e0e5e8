// GroupNorm of [N, C, ...] (Wu & He 2018) with learned weight (ones) and bias (zeros) for each channel.
#pragma once

#include "autograd/module.h"
#include "autograd/ops.h"

namespace tapestry {

class GroupNorm : public Module {
 public:
  GroupNorm(std::int64_t groups, std::int64_t channels, double eps = 1e-5);  // groups must divide channels
  Var operator()(const Var& x) const { return groupnorm(x, weight, bias, groups_, eps_); }
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "GroupNorm"; }

  Parameter weight, bias;  // [C]

 private:
  std::int64_t groups_;
  double eps_;
};

}  // namespace tapestry
