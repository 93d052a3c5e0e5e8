// Gated feed-forward layers (Shazeer 2020): down(activation(gate(x)) * up(x)), dropout after it. The activation names
// the member of the family: sigmoid GLU (Dauphin et al. 2017), gelu GEGLU, silu SwiGLU, relu ReGLU.
#pragma once

#include "layers/activation.h"
#include "layers/dropout.h"
#include "layers/linear.h"

namespace tapestry {

struct GatedMlpConfig {
  std::int64_t width = 0;
  std::int64_t hidden = 0;  // 0: 8/3 width rounded up to a multiple of 8, about as many weights as an Mlp of 4 width
  Activation activation = Activation::silu;
  double dropout = 0;
  bool bias = false;
};

class GatedMlp : public Module {
 public:
  GatedMlp(const GatedMlpConfig& config, Rng& rng);
  Var operator()(const Var& x) const;
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "GatedMlp"; }

  Linear gate, up, down;
  Dropout dropout;

 private:
  Activation activation_;
};

}  // namespace tapestry
