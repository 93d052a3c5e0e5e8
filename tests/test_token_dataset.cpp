// Text files, the split, and batches as a pure function of seed and index.
#include "core/data/token_dataset.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "core/io/atomic_file.h"
#include "fault_injection.h"

using namespace tapestry;

namespace {

std::vector<std::int32_t> counting(std::int64_t count, std::int32_t first = 0) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// The starts of the blocks of one epoch, in visiting order.
std::vector<std::int64_t> epoch_starts(const TokenBatches& batches, std::int64_t epoch) {
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < batches.blocks_per_epoch(); ++i)
    starts.push_back(batches.block_start(epoch * batches.blocks_per_epoch() + i));
  return starts;
}

bool same(const Batch& a, const Batch& b) { return same_bits(a.inputs, b.inputs) && same_bits(a.targets, b.targets); }

}  // namespace

TEST_CASE("an epoch visits each block exactly once, in an order and from an offset of its own") {
  for (const std::int64_t blocks : {1, 2, 3, 7, 64, 1000})
    for (const std::int64_t block : {1, 5, 32}) {
      const TokenBatches batches(counting((blocks + 1) * block), 4, block, 11);
      REQUIRE(batches.blocks_per_epoch() == blocks);
      CHECK(batches.batches_per_epoch() == (blocks + 3) / 4);
      std::set<std::vector<std::int64_t>> orders;
      std::set<std::int64_t> offsets;
      for (std::int64_t epoch = 0; epoch < 40; ++epoch) {
        std::vector<std::int64_t> starts = epoch_starts(batches, epoch);
        std::vector<std::int64_t> sorted = starts;
        std::sort(sorted.begin(), sorted.end());
        for (std::size_t i = 1; i < sorted.size(); ++i) REQUIRE(sorted[i] == sorted[i - 1] + block);
        REQUIRE(sorted.front() >= 0);
        REQUIRE(sorted.back() + block + 1 <= batches.tokens());
        offsets.insert(sorted.front());
        for (std::int64_t& start : starts) start -= sorted.front();
        orders.insert(starts);
      }
      CAPTURE(blocks);
      CAPTURE(block);
      CHECK(orders.size() >= (blocks == 1 ? 1u : blocks == 2 ? 2u : blocks == 3 ? 5u : 39u));
      CHECK(static_cast<std::int64_t>(offsets.size()) >= std::min<std::int64_t>(block, 16));
    }
}

TEST_CASE("an order is no near copy of the identity") {
  const TokenBatches batches(counting(1001), 1, 1, 3);
  const std::vector<std::int64_t> starts = epoch_starts(batches, 0);
  std::int64_t ascending = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) ascending += starts[i] > starts[i - 1];
  CHECK(ascending > 440);  // about half; 4 standard deviations are 37
  CHECK(ascending < 560);
}

TEST_CASE("over the epochs every token is an input and a target") {
  const std::int64_t block = 6, length = 4 * block + 3;
  const TokenBatches batches(counting(length), 3, block, 5);
  std::set<std::int32_t> inputs, targets;
  for (std::int64_t i = 0; i < 100 * batches.batches_per_epoch(); ++i) {
    const Batch batch = batches.batch(i);
    for (const std::int32_t t : batch.inputs.to_vector<std::int32_t>()) inputs.insert(t);
    for (const std::int32_t t : batch.targets.to_vector<std::int32_t>()) targets.insert(t);
  }
  CHECK(inputs.size() == static_cast<std::size_t>(length - 1));
  CHECK(*inputs.rbegin() == length - 2);
  CHECK(targets.size() == static_cast<std::size_t>(length - 1));
  CHECK(*targets.begin() == 1);
}

TEST_CASE("a batch holds blocks of the sequence, its targets one token later") {
  const TokenBatches batches(counting(1000, 100000), 5, 8, 1);
  const Batch batch = batches.batch(3);
  REQUIRE(batch.inputs.shape() == Shape{5, 8});
  REQUIRE(batch.inputs.dtype() == DType::i32);
  for (std::int64_t row = 0; row < 5; ++row)
    for (std::int64_t t = 0; t < 8; ++t) {
      CHECK(batch.inputs.at(row * 8 + t) == 100000 + batches.block_start(3 * 5 + row) + t);
      CHECK(batch.targets.at(row * 8 + t) == batch.inputs.at(row * 8 + t) + 1);
    }
}

TEST_CASE("F10 ids above 65535 stay") {
  const TokenBatches batches({70000, 119546, 65536}, 1, 2, 0);
  CHECK(batches.batch(0).inputs.to_vector<std::int32_t>() == std::vector<std::int32_t>{70000, 119546});
  CHECK(batches.batch(0).targets.to_vector<std::int32_t>() == std::vector<std::int32_t>{119546, 65536});
}

TEST_CASE("F01 a batch depends on seed and index only") {
  const auto tokens = counting(3000);
  const TokenBatches forward(tokens, 4, 16, 42), backward(tokens, 4, 16, 42), other(tokens, 4, 16, 43);
  std::vector<Batch> seen;
  for (std::int64_t i = 0; i < 120; ++i) seen.push_back(forward.batch(i));  // two and a half epochs
  int differing = 0;
  for (std::int64_t i = 119; i >= 0; --i) {
    CHECK(same(backward.batch(i), seen[static_cast<std::size_t>(i)]));
    differing += !same(other.batch(i), seen[static_cast<std::size_t>(i)]);
  }
  CHECK(differing >= 118);
}

TEST_CASE("the first batches of a seed never change between versions") {
  const TokenBatches batches(counting(10000), 4, 16, 1337);
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < 4; ++i) starts.push_back(batches.block_start(i));
  CHECK(starts == std::vector<std::int64_t>{7752, 5288, 4376, 280});
}

TEST_CASE("fill writes into the tensors that it gets") {
  const TokenBatches batches(counting(500), 2, 10, 9);
  Batch batch = batches.batch(0);
  const std::byte* memory = batch.inputs.raw_data();
  const std::int64_t handed_out = memory_stats().current_total;
  batches.fill(7, batch);
  CHECK(batch.inputs.raw_data() == memory);
  CHECK(memory_stats().current_total == handed_out);
  CHECK(same(batch, batches.batch(7)));
  Batch wrong{empty({2, 9}, DType::i32), empty({2, 10}, DType::i32)}, none;
  CHECK(has(message_of([&] { batches.fill(0, wrong); }), "shape [2, 10], not [2, 9] and [2, 10]"));
  CHECK_THROWS_AS(batches.fill(0, none), Error);
  Batch wide{empty({2, 10}, DType::i64), empty({2, 10}, DType::i64)};
  CHECK_THROWS_AS(batches.fill(0, wide), Error);
}

TEST_CASE("evaluation batches are fixed, cover the part once, and any few of them are spread over it") {
  for (const std::int64_t length : {9, 17, 100, 1000, 8001}) {
    const std::int64_t block = 8;
    const TokenBatches batches(counting(length), 1, block, 1), other_seed(counting(length), 1, block, 2);
    const std::int64_t count = batches.evaluation_blocks();
    REQUIRE(count == (length - 1) / block);
    std::set<double> starts;
    for (std::int64_t i = 0; i < count; ++i) {
      const Batch batch = batches.evaluation_batch(i);
      CHECK(same(batch, other_seed.evaluation_batch(i)));
      CHECK(same(batch, batches.evaluation_batch(i + count)));
      CHECK(batch.targets.at(7) == batch.inputs.at(7) + 1);
      starts.insert(batch.inputs.at(0));
    }
    CHECK(starts.size() == static_cast<std::size_t>(count));
  }
  // Each tenth of the part gets its share of the first 50 blocks.
  const TokenBatches batches(counting(80001), 5, 8, 1);
  std::vector<int> tenths(10);
  for (std::int64_t i = 0; i < 10; ++i)
    for (std::int64_t row = 0; row < 5; ++row)
      ++tenths[static_cast<std::size_t>(batches.evaluation_batch(i).inputs.at(row * 8)) / 8000];
  for (const int n : tenths) CHECK((n >= 3 && n <= 7));
}

TEST_CASE("impossible sizes are refused with the fix") {
  const auto error = [](std::int64_t tokens, std::int64_t batch, std::int64_t block) {
    return message_of([&] { TokenBatches(counting(tokens), batch, block, 0); });
  };
  CHECK(has(error(8, 1, 8), "8 tokens are too few for block_size 8, which needs 8 + 1"));
  CHECK(has(error(0, 1, 8), "0 tokens are too few"));
  CHECK(has(error(9, 1, 0), "block_size must be at least 1, not 0"));
  CHECK(has(error(9, 1, std::numeric_limits<std::int64_t>::max()), "too few"));
  CHECK(has(error(9, 0, 8), "batch_size must be at least 1, not 0"));
  CHECK(error(9, 1, 8) == "nothing was thrown");
  const TokenBatches batches(counting(9), 1, 8, 0);
  CHECK(has(message_of([&] { batches.batch(-1); }), "at least 0, not -1"));
  CHECK(has(message_of([&] { batches.evaluation_batch(-1); }), "at least 0, not -1"));
}

TEST_CASE("split_tokens cuts the end off, and says which part is too short") {
  const TokenSplit split = split_tokens(counting(1000), 0.1, 64);
  CHECK(split.train == counting(900));
  CHECK(split.validation == counting(100, 900));
  CHECK(split_tokens(counting(1115394), 0.1, 64).train.size() == 1003854);
  CHECK(split_tokens(counting(65), 0, 64).validation.empty());
  CHECK(has(message_of([] { split_tokens(counting(600), 0.1, 64); }),
            "of 600 tokens the validation part has 60, but block_size 64 needs at least 64 + 1"));
  CHECK(has(message_of([] { split_tokens(counting(64), 0, 64); }), "the training part has 64"));
  CHECK(has(message_of([] { split_tokens({}, 0.1, 64); }), "of 0 tokens the training part has 0"));
  for (const double fraction : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK(has(message_of([&] { split_tokens(counting(1000), fraction, 64); }), "must lie in [0, 1)"));
}

TEST_CASE("read_text_file says what is wrong with a file") {
  const TemporaryFolder folder;
  const auto error = [](const std::string& path) { return message_of([&] { read_text_file(path); }); };
  replace_file(folder / "good", "In the beginning\n\u00E9");
  CHECK(read_text_file(folder / "good") == "In the beginning\n\u00E9");
  replace_file(folder / "empty", "");
  CHECK(has(error(folder / "empty"), folder / "empty" + " is empty"));
  CHECK(has(error(folder / "missing"), folder / "missing" + ": No such file or directory"));
  CHECK(has(error(folder.path.string()), "it is a folder"));
  CHECK(has(error(folder / "good/below"), "Not a directory"));
  replace_file(folder / "latin1", "caf\xE9 au lait");
  CHECK(has(error(folder / "latin1"), folder / "latin1" + ": invalid UTF-8 at byte 3 (0xE9)"));
  replace_file(folder / "cut", "caf\xC3");
  CHECK(has(error(folder / "cut"), "at byte 3 (0xC3): the text ends within a character"));
}
