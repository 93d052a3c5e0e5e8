#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/dtype.h"
#include "core/kernels/convert.h"
#include "core/parallel.h"
#include "core/tensor.h"

using namespace tapestry;

namespace {

// Definitions straight from the formats, in double, to compare with.
double f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? std::nan("") : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}
double bf16_value(std::uint16_t bits) {
  const int exponent = (bits >> 7) & 255, fraction = bits & 127;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 255) return fraction ? std::nan("") : sign * INFINITY;
  return sign * (exponent ? std::ldexp(128 + fraction, exponent - 134) : std::ldexp(fraction, -133));
}

// For every pair of neighbours: what lies between goes to the nearer, the middle to the even one.
template <class Value, class Convert>
void check_rounding(Value value, Convert convert, std::uint16_t infinity) {
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const double low = value(bits);
    const double high = bits + 1 == infinity ? 2 * low - value(bits - 1) : value(bits + 1);
    const float middle = static_cast<float>((low + high) / 2);  // exact: one bit more than the format has
    const std::uint16_t even = bits & 1 ? bits + 1 : bits;
    REQUIRE(convert(static_cast<float>(low)) == bits);
    REQUIRE(convert(-static_cast<float>(low)) == (bits | 0x8000));
    REQUIRE(convert(middle) == even);
    REQUIRE(convert(std::nextafter(middle, 0.0f)) == bits);
    REQUIRE(convert(std::nextafter(middle, INFINITY)) == bits + 1);
  }
}

// Narrows the floats with bits first, first + step, ... in vectors, and returns how many differ from one at a time.
std::int64_t count_differences(std::uint64_t first, std::uint64_t step, std::int64_t count) {
  constexpr std::int64_t kBlock = 4099;
  std::vector<float> values(kBlock);
  std::vector<std::uint16_t> half(kBlock), brain(kBlock);
  std::int64_t different = 0;
  for (std::int64_t done = 0; done < count; done += kBlock) {
    const std::int64_t n = std::min(kBlock, count - done);
    for (std::int64_t i = 0; i < n; ++i)
      values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + step * static_cast<std::uint64_t>(done + i)));
    cpu::narrow(DType::f16, values.data(), half.data(), n);
    cpu::narrow(DType::bf16, values.data(), brain.data(), n);
    for (std::int64_t i = 0; i < n; ++i)
      different += half[i] != f32_to_f16_bits(values[i]) || brain[i] != f32_to_bf16_bits(values[i]);
  }
  return different;
}

}  // namespace

TEST_CASE("Vectors convert as single numbers do: every 16-bit pattern, and f32 across all exponents") {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::vector<float> wide(65536);
    cpu::widen(dtype, bits.data(), wide.data(), 65536);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const float right = dtype == DType::f16 ? f16_bits_to_f32(bits[i]) : bf16_bits_to_f32(bits[i]);
      REQUIRE(std::bit_cast<std::uint32_t>(wide[i]) == std::bit_cast<std::uint32_t>(right));
    }
    // Every length of a tail, at odd addresses; what lies behind is left alone.
    for (std::int64_t n = 0; n < 40; ++n) {
      std::vector<float> some(42, -1.0f);
      cpu::widen(dtype, bits.data() + 0x3c01, some.data() + 1, n);
      std::vector<std::uint16_t> back(42, 7);
      cpu::narrow(dtype, some.data() + 1, back.data() + 1, n);
      for (std::int64_t i = 0; i < n; ++i) REQUIRE(back[i + 1] == bits[0x3c01 + i]);
      REQUIRE((some[n + 1] == -1.0f && back[n + 1] == 7 && back[0] == 7));
    }
  }
  // A step that is prime to 2^32 meets all exponents with mantissas of every kind; then the neighbourhood of each tie.
  CHECK(count_differences(0, 65521 * 31 + 2, 2'000'000) == 0);
  for (std::uint64_t around = 0; around < (1ull << 32); around += 1u << 12)
    REQUIRE(count_differences(around - 2, 1, 5) == 0);
}

TEST_CASE("slow: vectors narrow each of the 2^32 floats as single numbers do") {
  constexpr std::int64_t kEach = 1 << 24;
  std::array<std::int64_t, 256> different{};
  parallel_for(256, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      different[i] = count_differences(static_cast<std::uint64_t>(i * kEach), 1, kEach);
  });
  for (const std::int64_t d : different) CHECK(d == 0);
}

TEST_CASE("f16 and bf16 to f32: every bit pattern") {
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    for (const auto& [got, want] :
         {std::pair{f16_bits_to_f32(bits), f16_value(bits)}, std::pair{bf16_bits_to_f32(bits), bf16_value(bits)}}) {
      if (std::isnan(want))
        REQUIRE(std::isnan(got));
      else
        REQUIRE((got == want && std::signbit(got) == std::signbit(want)));
    }
  }
}

TEST_CASE("f32 to f16 and bf16 rounds to nearest even everywhere and keeps NaN") {
  check_rounding(f16_value, f32_to_f16_bits, 0x7c00);
  check_rounding(bf16_value, f32_to_bf16_bits, 0x7f80);
  for (std::uint32_t payload : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7f801fffu}) {
    const float nan = std::bit_cast<float>(payload);
    CHECK(std::isnan(f16_bits_to_f32(f32_to_f16_bits(nan))));
    CHECK(std::isnan(bf16_bits_to_f32(f32_to_bf16_bits(nan))));
  }
}

TEST_CASE("O12 O13 conversions at the edges") {
  CHECK(static_cast<float>(Half(65519.0f)) == 65504.0f);
  CHECK(static_cast<float>(Half(65520.0f)) == INFINITY);
  CHECK(static_cast<float>(BFloat16(.26914088f)) == .26953125f);
  CHECK(static_cast<float>(BFloat16(1.00390625f)) == 1.0f);
  CHECK(static_cast<float>(BFloat16(1.01171875f)) == 1.015625f);
  CHECK(static_cast<float>(BFloat16(std::numeric_limits<float>::max())) == INFINITY);
  CHECK(static_cast<float>(BFloat16(3.14f)) == 3.140625f);
  // An integer tensor takes the same path.
  CHECK(from_values<std::int32_t>({257, 259}, {2}).to(DType::bf16).at(0) == 256);
  CHECK(from_values<std::int32_t>({257, 259}, {2}).to(DType::bf16).at(1) == 260);
}

TEST_CASE("R05 NaN and infinity are visible in this build") {
  volatile double zero = 0;
  CHECK_FALSE(std::isfinite(zero / zero));
  CHECK(std::isnan(zero / zero));
  CHECK_FALSE(std::isfinite(1 / zero));
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
  FAIL("built with -ffinite-math-only");
#endif
}

TEST_CASE("names and sizes") {
  for (DType d : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    CHECK(dtype_from_name(name_of(d)) == d);
    visit_dtype(d, [&]<class T>(TypeTag<T>) { CHECK(static_cast<std::int64_t>(sizeof(T)) == size_of(d)); });
  }
  CHECK_THROWS_WITH_AS(dtype_from_name("float"), doctest::Contains("'float' is unknown"), Error);
  CHECK(accumulate_dtype(DType::bf16) == DType::f32);
  CHECK(accumulate_dtype(DType::f64) == DType::f64);
}
