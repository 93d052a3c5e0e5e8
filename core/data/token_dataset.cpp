// Shuffling without memory: where a block lies is computed from its number by a small keyed permutation.
#include "core/data/token_dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/data/tokenizer.h"
#include "core/io/atomic_file.h"
#include "core/random.h"

namespace tapestry {
namespace {

constexpr int kRounds = 6;

// A permutation of [0, count), one for each (key, epoch): a Feistel network over the next even number of bits, with
// Philox as its round function, repeated until the result is below count (Black & Rogaway 2002).
std::uint64_t permute(std::uint64_t value, std::uint64_t count, std::uint64_t epoch, std::uint64_t key) {
  const int half = std::max(1, (static_cast<int>(std::bit_width(count - 1)) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = value >> half, right = value & mask;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      // The round number lies above every half, and above the counters of the epoch's offset.
      const std::uint64_t mixed = philox(right | round << 60, epoch, key)[0];
      left = std::exchange(right, (left ^ mixed) & mask);
    }
    value = left << half | right;
  } while (value >= count);
  return value;
}

// Multiples of it modulo count visit everything once, and any run of them is spread evenly (golden section).
std::int64_t spreading_stride(std::int64_t count) {
  auto stride = std::max<std::int64_t>(1, std::llround(0.6180339887498949 * static_cast<double>(count)));
  while (std::gcd(stride, count) != 1) ++stride;
  return stride;
}

}  // namespace

TokenBatches::TokenBatches(std::vector<std::int32_t> tokens, std::int64_t batch_size, std::int64_t block,
                           std::uint64_t seed)
    : tokens_(std::move(tokens)), batch_size_(batch_size), block_(block), seed_(derive_seed(seed, "token batches")) {
  TAP_CHECK(batch_size >= 1, "token batches: batch_size must be at least 1, not ", batch_size);
  TAP_CHECK(block >= 1, "token batches: block_size must be at least 1, not ", block);
  TAP_CHECK(this->tokens() - 1 >= block, "token batches: ", this->tokens(), " tokens are too few for block_size ",
            block, ", which needs ", block, " + 1; use a longer text or a smaller block_size");
  blocks_ = std::max<std::int64_t>(1, (this->tokens() - block) / block);
  evaluation_stride_ = spreading_stride(evaluation_blocks());
}

void TokenBatches::check(std::int64_t index) const {
  TAP_CHECK(index >= 0 && index < std::numeric_limits<std::int64_t>::max() / batch_size_,
            "token batches: batch index must be at least 0, not ", index);
}

std::int64_t TokenBatches::block_start(std::int64_t position) const {
  const std::int64_t epoch = position / blocks_;
  const std::int64_t slack = tokens() - 1 - blocks_ * block_;
  const std::int64_t offset = RandomKey{seed_, static_cast<std::uint64_t>(epoch)}.below(0, slack + 1);
  const std::uint64_t number = permute(static_cast<std::uint64_t>(position % blocks_),
                                       static_cast<std::uint64_t>(blocks_), static_cast<std::uint64_t>(epoch), seed_);
  return offset + static_cast<std::int64_t>(number) * block_;
}

void TokenBatches::copy_block(std::int64_t row, std::int64_t start, std::int32_t* inputs, std::int32_t* targets) const {
  const std::int32_t* source = tokens_.data() + start;
  std::copy_n(source, block_, inputs + row * block_);
  std::copy_n(source + 1, block_, targets + row * block_);
}

void TokenBatches::fill(std::int64_t index, Batch& batch) const {
  check(index);
  const Shape shape{batch_size_, block_};
  TAP_CHECK(batch.inputs && batch.targets && batch.inputs.shape() == shape && batch.targets.shape() == shape,
            "token batches: fill takes tensors of shape ", shape, ", not ", batch.inputs.shape(), " and ",
            batch.targets.shape());
  auto* inputs = batch.inputs.mutable_data<std::int32_t>();
  auto* targets = batch.targets.mutable_data<std::int32_t>();
  for (std::int64_t row = 0; row < batch_size_; ++row)
    copy_block(row, block_start(index * batch_size_ + row), inputs, targets);
}

Batch TokenBatches::batch(std::int64_t index) const {
  const Shape shape{batch_size_, block_};
  Batch batch{empty(shape, DType::i32), empty(shape, DType::i32)};
  fill(index, batch);
  return batch;
}

Batch TokenBatches::evaluation_batch(std::int64_t index) const {
  check(index);
  const Shape shape{batch_size_, block_};
  Batch batch{empty(shape, DType::i32), empty(shape, DType::i32)};
  auto* inputs = batch.inputs.mutable_data<std::int32_t>();
  auto* targets = batch.targets.mutable_data<std::int32_t>();
  const auto count = static_cast<unsigned __int128>(evaluation_blocks());
  for (std::int64_t row = 0; row < batch_size_; ++row) {
    const auto position = static_cast<unsigned __int128>(index * batch_size_ + row);
    const auto number = position % count * static_cast<unsigned __int128>(evaluation_stride_) % count;
    copy_block(row, static_cast<std::int64_t>(number) * block_, inputs, targets);
  }
  return batch;
}

TokenSplit split_tokens(std::vector<std::int32_t> tokens, double validation_fraction, std::int64_t block) {
  TAP_CHECK(validation_fraction >= 0 && validation_fraction < 1,
            "split_tokens: the validation fraction must lie in [0, 1), not ", validation_fraction);
  TAP_CHECK(block >= 1, "split_tokens: block_size must be at least 1, not ", block);
  const auto total = static_cast<std::int64_t>(tokens.size());
  const auto train = static_cast<std::int64_t>(static_cast<double>(total) * (1 - validation_fraction));
  const auto check = [&](std::string_view part, std::int64_t length) {
    TAP_CHECK(length > block, "split_tokens: of ", total, " tokens the ", part, " part has ", length,
              ", but block_size ", block, " needs at least ", block,
              " + 1; use a longer text, a smaller block_size or ", "another validation fraction than ",
              validation_fraction);
  };
  check("training", train);
  if (validation_fraction > 0) check("validation", total - train);
  TokenSplit split;
  split.validation.assign(tokens.begin() + train, tokens.end());
  tokens.resize(static_cast<std::size_t>(train));
  split.train = std::move(tokens);
  return split;
}

std::string read_text_file(const std::string& path) {
  std::string text = read_file(path);
  TAP_CHECK(!text.empty(), path, " is empty; training needs a text");
  check_utf8(text, path);
  return text;
}

}  // namespace tapestry
