// The feed-forward part of a transformer block: down(activation(up(x))), dropout after it.
#pragma once

#include "layers/activation.h"
#include "layers/projection.h"

namespace tapestry {

struct MlpConfig {
  std::int64_t width = 0;
  std::int64_t hidden = 0;  // 0: 4 * width
  Activation activation = Activation::gelu_tanh;
  double dropout = 0;
  bool bias = true;
};

class Mlp : public Module {
 public:
  Mlp(const MlpConfig& config, Rng& rng);
  Var operator()(const Var& x, const Var& residual = {}) const;  // + residual, if there is one
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "Mlp"; }

  Linear up, down;
  Dropout dropout;

 private:
  Activation activation_;
};

}  // namespace tapestry
