#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/parallel.h"
#include "core/random.h"

using namespace tapestry;

TEST_CASE("Philox4x32-10 gives the published vectors") {
  // Salmon et al. 2011, the known-answer file of their Random123 library.
  CHECK(philox(0, 0, 0) == std::array<std::uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  CHECK(philox(kOnes, kOnes, kOnes) ==
        std::array<std::uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox(0x85a308d3243f6a88u, 0x0370734413198a2eu, 0x299f31d0a4093822u) ==
        std::array<std::uint32_t, 4>{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("uniform is in [0, 1), normal is finite, also at the ends of the bit range") {
  CHECK(uniform_from_bits(0) == 0.0f);
  CHECK(uniform_from_bits(~0u) < 1.0f);
  const RandomKey key{7, 3};
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kDraws = 400000;
  for (int i = 0; i < kDraws; ++i) {
    const double z = key.normal(i);
    REQUIRE(std::isfinite(z));
    sum += z, squares += z * z, fourth += z * z * z * z;
  }
  CHECK(std::abs(sum / kDraws) < 0.008);
  CHECK(std::abs(squares / kDraws - 1) < 0.012);
  CHECK(std::abs(fourth / kDraws - 3) < 0.1);
}

TEST_CASE("normal draws follow the normal distribution") {
  // Kolmogorov-Smirnov against Phi; 1.63 / sqrt(n) is the 1 % point.
  Tensor t = empty({100000});
  fill_normal(t, 0, 1, {11, 5});
  std::vector<float> v = t.to_vector<float>();
  std::sort(v.begin(), v.end());
  double worst = 0;
  const double n = static_cast<double>(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double phi = 0.5 * std::erfc(-v[i] / std::sqrt(2.0));
    worst =
        std::max({worst, std::abs(phi - static_cast<double>(i) / n), std::abs(phi - static_cast<double>(i + 1) / n)});
  }
  CHECK(worst < 1.63 / std::sqrt(n));
}

TEST_CASE("fills equal the element functions and do not depend on threads") {
  const RandomKey key{1234, 99};
  Tensor reference = empty({10007}), other = empty({10007});
  set_num_threads(1);
  fill_normal(reference, 0, 1, key);
  for (std::int64_t i : {0, 1, 2, 3, 4, 5000, 10006}) CHECK(static_cast<float>(reference.at(i)) == key.normal(i));
  for (int threads : {2, 3, 7}) {
    set_num_threads(threads);
    fill_normal(other, 0, 1, key);
    CHECK(same_bits(reference, other));
  }
  set_num_threads(0);
  fill_uniform(other, 0, 1, key);
  for (std::int64_t i : {0, 1, 2, 3, 10006}) CHECK(static_cast<float>(other.at(i)) == key.uniform(i));
  Tensor integers = zeros({3}, DType::i32);
  CHECK_THROWS_AS(fill_uniform(integers, 0, 1, key), Error);
}

TEST_CASE("below is in range and even") {
  const RandomKey key{5, 0};
  int counts[7] = {};
  for (int i = 0; i < 70000; ++i) {
    const std::int64_t x = key.below(i, 7);
    REQUIRE((x >= 0 && x < 7));
    ++counts[x];
  }
  for (int c : counts) CHECK(std::abs(c - 10000) < 500);
  CHECK(key.below(0, 1) == 0);
  CHECK_THROWS_AS(key.below(0, 0), Error);
}

TEST_CASE("keys of the thread's generator: numbered by step and call, restored by scopes") {
  std::set<std::uint64_t> streams;
  for (std::uint64_t step = 0; step < 5; ++step) {
    const RandomScope scope(42, step);
    for (int call = 0; call < 5; ++call) streams.insert(next_random_key().stream);
  }
  CHECK(streams.size() == 25);
  manual_seed(3);
  const RandomKey first = next_random_key();
  {
    const RandomScope scope(42, 1);
    const RandomKey a = next_random_key();
    const RandomScope again(42, 1);
    CHECK(next_random_key().stream == a.stream);
  }
  CHECK(next_random_key().stream == first.stream + 1);
  CHECK(first.seed == 3);
  CHECK(derive_seed(1, "init") != derive_seed(1, "data"));
  CHECK(derive_seed(1, "init") != derive_seed(2, "init"));
}
