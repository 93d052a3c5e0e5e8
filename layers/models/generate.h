// Writing text with a language model: one token at a time through the key-value cache.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/random.h"
#include "layers/models/gpt.h"

namespace tapestry {

struct SamplingOptions {
  double temperature = 1;  // 0: always the likeliest token
  std::int64_t top_k = 0;  // only the k likeliest tokens; 0: all
  double top_p = 1;        // only the likeliest tokens that together reach this probability (Holtzman et al. 2020)
  std::uint64_t seed = 1337;

  void check() const;  // throws with the field and its range
};

// Draws from softmax(logits / temperature) cut to top_k and top_p. `uniform` is in [0, 1). Ties go to the lower id.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

// Continues `prompt` by `count` tokens and calls on_token with each; stops early when that returns false. Where the
// context is full, the model goes on from the second half of it. The model is in eval mode for the call.
void generate(Gpt& model, std::span<const std::int32_t> prompt, std::int64_t count, const SamplingOptions& options,
              const std::function<bool(std::int32_t)>& on_token);

}  // namespace tapestry
