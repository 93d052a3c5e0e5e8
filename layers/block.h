// One transformer block around the residual stream:
//   Pre-LN  (Xiong et al. 2020):   h = x + attention(norm1(x));  y = h + mlp(norm2(h))
//   Post-LN (Vaswani et al. 2017): h = norm1(x + attention(x));  y = norm2(h + mlp(h))
#pragma once

#include "layers/attention.h"
#include "layers/layernorm.h"
#include "layers/mlp.h"

namespace tapestry {

enum class NormPlacement { pre, post };

struct BlockConfig {
  std::int64_t width = 0, heads = 0;
  std::int64_t head_dim = 0;  // 0: width / heads
  std::int64_t hidden = 0;    // 0: 4 * width
  NormPlacement norm = NormPlacement::pre;
  Activation activation = Activation::gelu_tanh;
  bool causal = true;
  double dropout = 0;
  bool bias = true;  // of the linear layers
};

class Block : public Module {
 public:
  Block(const BlockConfig& config, Rng& rng);
  Var operator()(const Var& x, const AttentionMask& mask = {}) const;
  Tensor extend(const Tensor& x, KeyValueCache& cache) const;  // inference, see Attention::extend
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "Block"; }

  LayerNorm norm1;
  Attention attention;
  LayerNorm norm2;
  Mlp mlp;

 private:
  template <class Attend>
  Var residual_stream(const Var& x, Attend&& attend) const;

  NormPlacement norm_;
};

}  // namespace tapestry
