// y = x W + b for [..., in] -> [..., out]. weight is [in, out]; Xavier uniform by default, bias 0.
#pragma once

#include <optional>

#include "autograd/module.h"
#include "autograd/ops.h"
#include "core/random.h"

namespace tapestry {

class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, Rng& rng, bool with_bias = true);
  Var operator()(const Var& x, const Var& residual = {}) const;  // + residual [..., out], if there is one
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "Linear"; }
  std::int64_t own_flops() const override { return 2 * weight.numel(); }

  Parameter weight;               // [in, out]
  std::optional<Parameter> bias;  // [out]
};

}  // namespace tapestry
