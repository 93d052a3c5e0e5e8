// A long sequence of token ids, cut into training and validation parts, and the batches drawn from it.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapestry {

struct Batch {
  Tensor inputs, targets;  // i32 [B, T]; targets are inputs one token later
};

// Batches of one part of the sequence. Every batch is a pure function of (seed, index), so a run resumes from the index
// alone. An epoch visits each block of `block` tokens once, in an order and from a starting offset of its own.
class TokenBatches {
 public:
  TokenBatches(std::vector<std::int32_t> tokens, std::int64_t batch_size, std::int64_t block, std::uint64_t seed);

  Batch batch(std::int64_t index) const;              // shuffled
  void fill(std::int64_t index, Batch& batch) const;  // the same into existing tensors
  Batch evaluation_batch(std::int64_t index) const;   // evenly spaced over the part, the same at every call
  std::int64_t batches_per_epoch() const;
  std::int64_t tokens() const { return static_cast<std::int64_t>(tokens_.size()); }

 private:
  std::vector<std::int32_t> tokens_;
  std::int64_t batch_size_, block_;
  std::uint64_t seed_;
};

struct TokenSplit {
  std::vector<std::int32_t> train, validation;
};
// The last `validation_fraction` of the tokens is the validation part. Throws if a part is shorter than block + 1.
TokenSplit split_tokens(std::vector<std::int32_t> tokens, double validation_fraction, std::int64_t block);

// A whole text file. Throws when it is missing, empty, unreadable or not UTF-8 (with the offset).
std::string read_text_file(const std::string& path);

}  // namespace tapestry
