// Multi-head self-attention (Vaswani et al. 2017): one packed projection to q, k, v, attention per head, projection
// back, dropout on the weights and on the result. [B, T, C] -> [B, T, C].
#pragma once

#include "layers/projection.h"

namespace tapestry {

struct AttentionConfig {
  std::int64_t width = 0;
  std::int64_t heads = 0;     // must divide width unless head_dim is set
  std::int64_t head_dim = 0;  // 0: width / heads
  bool causal = true;
  double dropout = 0;
  bool bias = true;  // of both projections

  void check() const;          // throws with the field and the fix
  std::int64_t inner() const;  // heads * head_dim, checked
};

// Which keys a query may see, besides the causal rule.
struct AttentionMask {
  Tensor key_lengths = {};  // i32 [B]: keys at and after it are padding
  Var mask = {};            // u8 (nonzero may attend) or float (added to scores), broadcastable to [B, H, Tq, Tk]
};

// Keys and values of the tokens seen so far, for sampling one token at a time.
struct KeyValueCache {
  Tensor keys = {}, values = {};  // [B, capacity, inner], of the type that qkv gives: low under an Autocast
  std::int64_t length = 0;        // tokens held
};

class Attention : public Module {
 public:
  Attention(const AttentionConfig& config, Rng& rng);
  Var operator()(const Var& x, const AttentionMask& mask = {}, const Var& residual = {}) const;  // + residual, if given
  // Inference: appends the keys and values of x [B, T, C] to the cache and attends to all of it. Not recorded. Throws
  // without causal, with dropout on (call eval()) and where the cache has no room.
  Tensor extend(const Tensor& x, KeyValueCache& cache) const;
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "Attention"; }
  const AttentionConfig& config() const { return config_; }

  Linear qkv, out;  // [C, 3 inner], [inner, C]
  Dropout dropout;  // of the weights and of the result

 private:
  AttentionConfig config_;
};

}  // namespace tapestry
