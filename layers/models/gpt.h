// A GPT-2 style language model (Radford et al. 2019): token and position embeddings, Pre-LN or Post-LN blocks, a final
// LayerNorm, and logits through the token embedding's own weight (tied) or a head of its own.
#pragma once

#include <string>
#include <vector>

#include "layers/block.h"
#include "layers/embedding.h"

namespace tapestry {

struct GptConfig {
  std::int64_t vocabulary = 0;
  std::int64_t context = 64;  // longest sequence
  std::int64_t layers = 4, heads = 4, width = 128;
  std::int64_t head_dim = 0;  // 0: width / heads
  double dropout = 0;
  bool bias = true;
  bool tied_head = true;
  NormPlacement norm = NormPlacement::pre;
  Activation activation = Activation::gelu_tanh;

  void check() const;  // throws with the field and the fix
};

class Gpt : public Module {
 public:
  // GPT-2's init: normal 0.02, projections into the residual stream 0.02 / sqrt(2 layers), biases 0. Throws as
  // config.check() does.
  Gpt(const GptConfig& config, std::uint64_t seed);
  // tokens i32 [B, T] with T <= context -> logits [B, T, V].
  Var operator()(const Tensor& tokens, const AttentionMask& mask = {}) const;
  CrossEntropy loss(const Tensor& tokens, const Tensor& targets, std::int64_t ignore_index = -100) const;

  // Inference with a key-value cache: feeds tokens [B, T] after those already in the cache and returns the logits
  // [B, V] of the last position, equal to operator()'s on the whole sequence within rounding.
  struct Cache {
    std::vector<KeyValueCache> blocks;
    std::int64_t length = 0;
  };
  Cache make_cache(std::int64_t batch) const;
  Tensor extend(const Tensor& tokens, Cache& cache) const;

  void visit(Visitor& v) override;
  std::string_view kind() const override { return "Gpt"; }
  std::int64_t own_flops() const override;  // a tied head, and attention to a full context
  const GptConfig& config() const { return config_; }

  Embedding token_embedding, position_embedding;
  Dropout dropout;
  std::vector<Block> blocks;
  LayerNorm norm;
  std::optional<Linear> head;  // only when not tied

 private:
  Gpt(const GptConfig& config, Rng rng);
  Var embed(const Tensor& tokens, std::int64_t first_position) const;
  Var logits(const Var& x) const;

  GptConfig config_;
};

}  // namespace tapestry
