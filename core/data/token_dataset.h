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
// alone. The blocks of all epochs follow each other without a gap: batch i holds blocks [i B, (i + 1) B). An epoch
// visits its blocks, which adjoin each other, once each, in an order of its own. It places them at an offset of its
// own, for which up to 2 T - 2 tokens at the two ends stay out of it.
class TokenBatches {
 public:
  // Throws unless there are block + 1 tokens.
  TokenBatches(std::vector<std::int32_t> tokens, std::int64_t batch_size, std::int64_t block, std::uint64_t seed);

  Batch batch(std::int64_t index) const;              // shuffled
  void fill(std::int64_t index, Batch& batch) const;  // the same into existing tensors; allocates nothing
  // The blocks [0, T), [T, 2 T), ... in an order in which every beginning is spread evenly over the part, so a few
  // batches represent it. The same at every call; after evaluation_blocks() blocks it starts again.
  Batch evaluation_batch(std::int64_t index) const;
  std::int64_t evaluation_blocks() const { return (tokens() - 1) / block_; }

  std::int64_t blocks_per_epoch() const { return blocks_; }
  std::int64_t batches_per_epoch() const { return (blocks_ + batch_size_ - 1) / batch_size_; }  // rounded up
  std::int64_t tokens() const { return static_cast<std::int64_t>(tokens_.size()); }
  // Where block `position` of the sequence of all epochs begins in the part.
  std::int64_t block_start(std::int64_t position) const;

 private:
  void check(std::int64_t index) const;
  void copy_block(std::int64_t row, std::int64_t start, std::int32_t* inputs, std::int32_t* targets) const;

  std::vector<std::int32_t> tokens_;
  std::int64_t batch_size_, block_, blocks_ = 0, evaluation_stride_ = 1;
  std::uint64_t seed_;
};

struct TokenSplit {
  std::vector<std::int32_t> train, validation;
};
// The last `validation_fraction` of the tokens is the validation part; 0 leaves it empty. Throws if a part that is
// asked for is shorter than block + 1.
TokenSplit split_tokens(std::vector<std::int32_t> tokens, double validation_fraction, std::int64_t block);

// A whole text file. Throws when it is missing, empty, unreadable or not UTF-8 (with the offset).
std::string read_text_file(const std::string& path);

}  // namespace tapestry
