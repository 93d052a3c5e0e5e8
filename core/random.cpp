#include "core/random.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/parallel.h"

namespace tapestry {

namespace {

constexpr int kCallBits = 24;  // random ops within one step; the step takes the other 40 bits of a stream number

constexpr int kRounds = 10;
constexpr std::uint32_t kKeyStep0 = 0x9E3779B9u, kKeyStep1 = 0xBB67AE85u;  // added to the key after each round

inline void philox_round(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2, std::uint32_t& c3, std::uint32_t k0,
                         std::uint32_t k1) {
  const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
  c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
  c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
  c1 = static_cast<std::uint32_t>(p1);
  c3 = static_cast<std::uint32_t>(p0);
}

// ln(x) for x in (0, 1]: exponent and a series in (m - 1) / (m + 1), |error| < 2e-7. Own code, so that every device
// draws the same numbers.
inline float log_unit(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  int exponent = static_cast<int>(bits >> 23) - 127;
  float m = std::bit_cast<float>((bits & 0x7fffffu) | 0x3f800000u);  // [1, 2)
  const bool high = m > 1.41421356f;
  m = high ? m * 0.5f : m;
  exponent += high;
  const float s = (m - 1) / (m + 1), s2 = s * s;
  const float series = 2 * s * (1 + s2 * (0.33333333f + s2 * (0.2f + s2 * (0.14285714f + s2 * 0.11111111f))));
  return static_cast<float>(exponent) * 0.69314718f + series;
}

struct SinCos {
  float sin, cos;
};
// sin and cos of 2 pi u, u in [0, 1): nearest quarter turn, Taylor polynomials on the rest (|angle| <= pi/4).
inline SinCos sincos_turn(float u) {
  const int quarter = static_cast<int>(u * 4 + 0.5f);
  const float a = (u - 0.25f * static_cast<float>(quarter)) * 6.28318531f, a2 = a * a;
  const float s = a * (1 + a2 * (-0.16666667f + a2 * (8.3333333e-3f + a2 * (-1.9841270e-4f + a2 * 2.7557319e-6f))));
  const float c = 1 + a2 * (-0.5f + a2 * (0.041666667f + a2 * (-1.3888889e-3f + a2 * 2.4801587e-5f)));
  const float x = quarter & 1 ? c : s, y = quarter & 1 ? s : c;  // no branches, so that loops become vectors
  return {quarter & 2 ? -x : x, (quarter + 1) & 2 ? -y : y};
}

// Box-Muller on one pair of words. The first is moved to (0, 1], so the logarithm is finite.
inline SinCos normal_pair(std::uint32_t radius_bits, std::uint32_t angle_bits) {
  const float u = static_cast<float>((radius_bits >> 8) + 1) * 0x1p-24f;
  const float radius = std::sqrt(-2 * log_unit(u));
  const SinCos angle = sincos_turn(uniform_from_bits(angle_bits));
  return {radius * angle.sin, radius * angle.cos};
}

// Fills t run by run: make(bits, values) turns kRandomRun words into as many values.
template <class Make>
void fill_runs(Tensor& t, RandomKey key, Make make) {
  visit_dtype(t.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_integral_v<T>) {
      fail("fill: random fills need a floating dtype, not ", t.dtype());
    } else {
      T* p = t.mutable_data<T>();
      const std::int64_t n = t.numel();
      parallel_for((n + kRandomRun - 1) / kRandomRun, 64, [=](std::int64_t begin, std::int64_t end) {
        std::uint32_t bits[kRandomRun];
        float values[kRandomRun];
        for (std::int64_t first = begin * kRandomRun; first < std::min(end * kRandomRun, n); first += kRandomRun) {
          random_run(key, first, bits);
          make(bits, values);
          const std::int64_t count = std::min<std::int64_t>(kRandomRun, n - first);
          for (std::int64_t i = 0; i < count; ++i) p[first + i] = static_cast<T>(values[i]);
        }
      });
    }
  });
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::uint64_t counter_low, std::uint64_t counter_high, std::uint64_t key) {
  auto c0 = static_cast<std::uint32_t>(counter_low), c1 = static_cast<std::uint32_t>(counter_low >> 32);
  auto c2 = static_cast<std::uint32_t>(counter_high), c3 = static_cast<std::uint32_t>(counter_high >> 32);
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    philox_round(c0, c1, c2, c3, k0, k1);
    k0 += kKeyStep0;
    k1 += kKeyStep1;
  }
  return {c0, c1, c2, c3};
}

void random_run(RandomKey key, std::int64_t first, std::uint32_t* bits) {
  constexpr int kBlocks = kRandomRun / 4;
  std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    const std::uint64_t counter = (static_cast<std::uint64_t>(first) >> 2) + static_cast<std::uint64_t>(b);
    c0[b] = static_cast<std::uint32_t>(counter);
    c1[b] = static_cast<std::uint32_t>(counter >> 32);
    c2[b] = static_cast<std::uint32_t>(key.stream);
    c3[b] = static_cast<std::uint32_t>(key.stream >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < kRounds; ++round) {
    for (int b = 0; b < kBlocks; ++b) philox_round(c0[b], c1[b], c2[b], c3[b], k0, k1);
    k0 += kKeyStep0;
    k1 += kKeyStep1;
  }
  for (int b = 0; b < kBlocks; ++b) {
    bits[4 * b] = c0[b];
    bits[4 * b + 1] = c1[b];
    bits[4 * b + 2] = c2[b];
    bits[4 * b + 3] = c3[b];
  }
}

float RandomKey::normal(std::int64_t i) const {
  const auto words = philox(static_cast<std::uint64_t>(i) >> 2, stream, seed);
  const int pair = static_cast<int>(i & 2);
  const SinCos z = normal_pair(words[pair], words[pair + 1]);
  return i & 1 ? z.sin : z.cos;
}

std::int64_t RandomKey::below(std::int64_t i, std::int64_t bound) const {
  TAP_CHECK(bound > 0, "below: the bound must be positive, not ", bound);
  const auto words = philox(static_cast<std::uint64_t>(i), stream, seed);
  const std::uint64_t bits = (std::uint64_t{words[1]} << 32) | words[0];
  return static_cast<std::int64_t>((static_cast<unsigned __int128>(bits) * static_cast<std::uint64_t>(bound)) >> 64);
}

std::uint64_t derive_seed(std::uint64_t seed, std::string_view purpose) {
  std::uint64_t label = 0xcbf29ce484222325u;  // FNV-1a
  for (char c : purpose) label = (label ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  const auto words = philox(label, 0, seed);
  return (std::uint64_t{words[1]} << 32) | words[0];
}

RandomScope::State& RandomScope::current() {
  static thread_local State state;
  return state;
}
RandomScope::RandomScope(const State& state) : outer_(std::exchange(current(), state)) {}
RandomScope::~RandomScope() { current() = outer_; }

RandomKey next_random_key() {
  RandomScope::State& state = RandomScope::current();
  TAP_CHECK(state.calls < (std::uint64_t{1} << kCallBits), "random: more than 2^24 random ops in one step");
  return {state.seed, (state.step << kCallBits) | state.calls++};
}

void manual_seed(std::uint64_t seed) { RandomScope::current() = {seed, 0, 0}; }

void fill_uniform(Tensor& t, double low, double high, RandomKey key) {
  fill_runs(t, key, [=](const std::uint32_t* bits, float* values) {
    for (int i = 0; i < kRandomRun; ++i)
      values[i] = static_cast<float>(low + (high - low) * uniform_from_bits(bits[i]));
  });
}

void fill_normal(Tensor& t, double mean, double std, RandomKey key) {
  fill_runs(t, key, [=](const std::uint32_t* bits, float* values) {
    for (int i = 0; i < kRandomRun; i += 2) {
      const SinCos z = normal_pair(bits[i], bits[i + 1]);
      values[i] = static_cast<float>(mean + std * z.cos);
      values[i + 1] = static_cast<float>(mean + std * z.sin);
    }
  });
}

}  // namespace tapestry
