// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): every value is a pure function of
// (seed, stream, element), so results do not depend on threads, and a mask can be replayed instead of stored.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/tensor.h"

namespace tapestry {

// Four random 32-bit words for a 128-bit counter under a 64-bit key.
std::array<std::uint32_t, 4> philox(std::uint64_t counter_low, std::uint64_t counter_high, std::uint64_t key);

inline float uniform_from_bits(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }  // [0, 1)

// Identifies one sequence of random numbers; element i of it is the same wherever and whenever it is asked for.
struct RandomKey {
  std::uint64_t seed = 0, stream = 0;
  std::uint32_t bits(std::int64_t i) const {
    return philox(static_cast<std::uint64_t>(i) >> 2, stream, seed)[static_cast<std::size_t>(i & 3)];
  }
  float uniform(std::int64_t i) const { return uniform_from_bits(bits(i)); }  // [0, 1), 24 bits
  float normal(std::int64_t i) const;  // mean 0, variance 1; always finite; Box-Muller on our own polynomials
  std::int64_t below(std::int64_t i, std::int64_t bound) const;  // in [0, bound), from 64 bits
};

// Many at once, computed side by side in vectors: bits[i] = key.bits(first + i) for i < kRandomRun. first % 4 == 0.
inline constexpr int kRandomRun = 256;
void random_run(RandomKey key, std::int64_t first, std::uint32_t* bits);

// An independent seed for one purpose ("init", "data", "sample"), so that no two uses share numbers.
std::uint64_t derive_seed(std::uint64_t seed, std::string_view purpose);

// A source of streams: each call of next() gives the key of a fresh one. Layers draw their initial weights from it.
class Rng {
 public:
  explicit Rng(std::uint64_t seed = 0) : seed_(seed) {}
  RandomKey next() { return {seed_, stream_++}; }

 private:
  std::uint64_t seed_, stream_ = 0;
};

// The generator that random ops (dropout) of this thread draw from: keys are numbered by (step, call within the step).
// Trainer opens a scope per micro-batch, so a resumed run needs only the step. Outside of any scope the thread has a
// generator of its own that starts at (0, 0); manual_seed restarts it.
class RandomScope {
 public:
  struct State {
    std::uint64_t seed = 0, step = 0, calls = 0;
  };
  RandomScope(std::uint64_t seed, std::uint64_t step) : RandomScope(State{seed, step, 0}) {}
  explicit RandomScope(const State& state);  // draws what was drawn after current() was `state`
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;
  static State& current();

 private:
  State outer_;
};
RandomKey next_random_key();           // of the current generator
void manual_seed(std::uint64_t seed);  // of the current generator

// Fills of a floating tensor, parallel and independent of the thread count.
void fill_uniform(Tensor& t, double low, double high, RandomKey key);
void fill_normal(Tensor& t, double mean, double std, RandomKey key);

}  // namespace tapestry
