// Without its sign bit a float is an integer that grows with the magnitude: 0, subnormals, normals, inf, NaN. Negative
// ones with these bits flipped make signed keys in the order of the values. A block is read once with integer
// operations that vectorise; only one that turns out to hold NaN or inf is read again, element by element.
#include "core/kernels/value_range.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "core/parallel.h"

namespace tapestry {

double largest_finite(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return std::numeric_limits<double>::max();
    case DType::f32:
      return std::numeric_limits<float>::max();
    case DType::f16:
      return 65504;
    case DType::bf16:
      return bf16_bits_to_f32(0x7f7f);
    default:
      fail("largest_finite: needs a floating dtype, not ", dtype);
  }
}

namespace cpu {

namespace {

constexpr std::int64_t kBlock = 4096;  // its counts fit 16 bits
constexpr std::int64_t kParts = 64;    // fixed, so that nothing depends on the threads

template <class Bits, int Mantissa>
struct Format {
  using Key = std::make_signed_t<Bits>;
  static constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  static constexpr Bits kMinNormal = Bits{1} << Mantissa;
  static constexpr Bits kInf = kMagnitude & static_cast<Bits>(~(kMinNormal - 1));
  // Its own inverse.
  static Key key(Bits bits) {
    return static_cast<Key>(bits ^ (static_cast<Bits>(static_cast<Key>(bits) >> (8 * sizeof(Bits) - 1)) & kMagnitude));
  }
};

// In bits and keys; `low` > `high` where nothing is finite.
template <class F>
struct Part {
  using Key = typename F::Key;
  std::int64_t nans = 0, positive_infs = 0, negative_infs = 0, zeros = 0, subnormals = 0, first_nonfinite = -1;
  Key first_key = 0;
  Key low = std::numeric_limits<Key>::max(), high = std::numeric_limits<Key>::min();

  void widen(Key smallest, Key largest) {
    low = std::min(low, smallest);
    high = std::max(high, largest);
  }
  void join(const Part& o) {
    nans += o.nans;
    positive_infs += o.positive_infs;
    negative_infs += o.negative_infs;
    zeros += o.zeros;
    subnormals += o.subnormals;
    if (first_nonfinite < 0) {
      first_nonfinite = o.first_nonfinite;
      first_key = o.first_key;
    }
    widen(o.low, o.high);
  }
};

template <class F, class Bits>
void read_nonfinite_block(const Bits* x, std::int64_t begin, std::int64_t end, Part<F>& part) {
  for (std::int64_t i = begin; i < end; ++i) {
    const Bits magnitude = x[i] & F::kMagnitude;
    if (magnitude < F::kInf) {
      part.widen(F::key(x[i]), F::key(x[i]));
      continue;
    }
    if (part.first_nonfinite < 0) {
      part.first_nonfinite = i;
      part.first_key = F::key(x[i]);
    }
    if (magnitude > F::kInf)
      ++part.nans;
    else
      ++(x[i] == F::kInf ? part.positive_infs : part.negative_infs);
  }
}

template <class F, class Bits>
void read_block(const Bits* x, std::int64_t begin, std::int64_t end, Part<F>& part) {
  using Key = typename F::Key;
  Bits largest = 0, zeros = 0, tiny = 0;
  Key low = std::numeric_limits<Key>::max(), high = std::numeric_limits<Key>::min();
  for (std::int64_t i = begin; i < end; ++i) {
    const Bits magnitude = x[i] & F::kMagnitude;
    largest = std::max(largest, magnitude);
    zeros = static_cast<Bits>(zeros + (magnitude == 0));
    tiny = static_cast<Bits>(tiny + (magnitude < F::kMinNormal));
    low = std::min(low, F::key(x[i]));
    high = std::max(high, F::key(x[i]));
  }
  part.zeros += static_cast<std::int64_t>(zeros);
  part.subnormals += static_cast<std::int64_t>(tiny - zeros);
  if (largest < F::kInf)
    part.widen(low, high);
  else
    read_nonfinite_block(x, begin, end, part);
}

template <class F, class T, class Bits = std::make_unsigned_t<typename F::Key>>
void read(const Tensor& t, ValueRange& range) {
  const auto* x = reinterpret_cast<const Bits*>(t.raw_data());
  const std::int64_t blocks = (t.numel() + kBlock - 1) / kBlock, parts = std::min(blocks, kParts);
  std::array<Part<F>, kParts> found;
  parallel_for(parts, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p)
      for (std::int64_t b = blocks * p / parts; b < blocks * (p + 1) / parts; ++b)
        read_block(x, b * kBlock, std::min((b + 1) * kBlock, t.numel()), found[static_cast<std::size_t>(p)]);
  });
  Part<F> all;
  for (const Part<F>& part : found) all.join(part);
  range = {t.numel(), all.nans, all.positive_infs, all.negative_infs, all.zeros, all.subnormals, all.first_nonfinite};
  const auto value = [](typename F::Key key) {
    const auto bits = static_cast<Bits>(F::key(static_cast<Bits>(key)));
    if constexpr (sizeof(T) == sizeof(Bits) && std::is_floating_point_v<T>) {
      return static_cast<double>(std::bit_cast<T>(bits));
    } else {
      T stored;
      stored.bits = bits;
      return static_cast<double>(static_cast<float>(stored));
    }
  };
  if (all.first_nonfinite >= 0) range.first_value = value(all.first_key);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  range.min = all.low > all.high ? kInfinity : value(all.low);
  range.max = all.low > all.high ? -kInfinity : value(all.high);
}

}  // namespace

void value_range(const Tensor& x, ValueRange& range) {
  switch (x.dtype()) {
    case DType::f64:
      return read<Format<std::uint64_t, 52>, double>(x, range);
    case DType::f32:
      return read<Format<std::uint32_t, 23>, float>(x, range);
    case DType::f16:
      return read<Format<std::uint16_t, 10>, Half>(x, range);
    case DType::bf16:
      return read<Format<std::uint16_t, 7>, BFloat16>(x, range);
    default:
      fail("value_range: needs a floating tensor, not ", x.dtype());
  }
}

}  // namespace cpu
}  // namespace tapestry
