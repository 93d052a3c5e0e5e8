// f16 and bf16 to f32 and back, in vectors and in arrays, with the bits of core/dtype.h for every input: rounding to
// nearest even, subnormals kept, NaN quiet. bf16 goes through integers, since the processor's own narrowing
// (vcvtneps2bf16) flushes subnormals; f16 through the processor's instructions where the build has them.
#pragma once

#include "core/dtype.h"
#include "core/kernels/simd.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace tapestry::simd {

// As many 16-bit elements as a vector has floats.
using HalfLanes = std::uint16_t __attribute__((vector_size(kVectorBytes / 2)));
using FloatBits = std::uint32_t __attribute__((vector_size(kVectorBytes)));

namespace detail {

inline FloatBits any_of(FloatBits mask, FloatBits a, FloatBits b) { return (mask & a) | (~mask & b); }
inline FloatBits as_mask(auto comparison) { return (FloatBits)comparison; }

inline Vec<float> widen_bits(HalfLanes bits, BFloat16) {
  return (Vec<float>)(__builtin_convertvector(bits, FloatBits) << 16);
}

inline HalfLanes narrow_bits(Vec<float> v, BFloat16) {
  const FloatBits bits = (FloatBits)v;
  const FloatBits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector(any_of(as_mask((bits & 0x7fffffffu) > 0x7f800000u), quiet, rounded), HalfLanes);
}

#if defined(__F16C__)
#if defined(__AVX512F__)
inline constexpr __mmask16 kEveryLane = 0xffff;  // GCC 12 warns of the unmasked forms
#endif
inline Vec<float> widen_bits(HalfLanes bits, Half) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(kEveryLane, (__m256i)bits);
#else
  return _mm256_cvtph_ps((__m128i)bits);
#endif
}

inline HalfLanes narrow_bits(Vec<float> v, Half) {
#if defined(__AVX512F__)
  return (HalfLanes)_mm512_maskz_cvtps_ph(kEveryLane, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return (HalfLanes)_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
}
#else
// Shifted into place, a finite number lacks only the difference of the two exponent biases, subnormal or not.
inline Vec<float> widen_bits(HalfLanes bits, Half) {
  const FloatBits wide = __builtin_convertvector(bits, FloatBits), sign = (wide & 0x8000u) << 16;
  const FloatBits magnitude = wide & 0x7fffu, finite = (FloatBits)((Vec<float>)(magnitude << 13) * 0x1p112f);
  const FloatBits quiet = as_mask(magnitude > 0x7c00u) & 0x400000u;
  const FloatBits special = 0x7f800000u | ((magnitude & 0x3ffu) << 13) | quiet;
  return (Vec<float>)(sign | any_of(as_mask(magnitude >= 0x7c00u), special, finite));
}

inline HalfLanes narrow_bits(Vec<float> v, Half) {
  const FloatBits bits = (FloatBits)v, sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  const FloatBits normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const FloatBits subnormal = (FloatBits)((Vec<float>)magnitude + 0.5f) - 0x3f000000u;
  const FloatBits nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu), infinity = FloatBits{} + 0x7c00u;
  FloatBits result = any_of(as_mask(magnitude < 0x38800000u), subnormal, normal);
  result = any_of(as_mask(magnitude >= 0x477ff000u), infinity, result);
  result = any_of(as_mask(magnitude > 0x7f800000u), nan, result);
  return __builtin_convertvector(sign | result, HalfLanes);
}
#endif

}  // namespace detail

template <class H>
concept SixteenBit = std::same_as<H, Half> || std::same_as<H, BFloat16>;

template <SixteenBit H>
inline Vec<float> load_wide(const H* p) {
  HalfLanes bits;
  std::memcpy(&bits, p, sizeof(bits));
  return detail::widen_bits(bits, H());
}
template <SixteenBit H>
inline void store_narrow(H* p, Vec<float> v) {
  const HalfLanes bits = detail::narrow_bits(v, H());
  std::memcpy(static_cast<void*>(p), &bits, sizeof(bits));
}

// The first `count` lanes, from 1 on; the others are 0 when loaded and left alone when stored.
template <SixteenBit H>
inline Vec<float> load_wide_partial(const H* p, std::int64_t count) {
  if (count == kLanes<float>) return load_wide(p);
  HalfLanes bits{};
  std::memcpy(&bits, p, static_cast<std::size_t>(count) * sizeof(H));
  return detail::widen_bits(bits, H());
}
template <SixteenBit H>
inline void store_narrow_partial(H* p, Vec<float> v, std::int64_t count) {
  if (count == kLanes<float>) return store_narrow(p, v);
  const HalfLanes bits = detail::narrow_bits(v, H());
  std::memcpy(static_cast<void*>(p), &bits, static_cast<std::size_t>(count) * sizeof(H));
}

}  // namespace tapestry::simd

namespace tapestry::cpu {

// n elements of f16 or bf16 to f32 and back, on the calling thread. The arrays must not overlap.
void widen(DType dtype, const void* from, float* to, std::int64_t n);
void narrow(DType dtype, const float* from, void* to, std::int64_t n);

}  // namespace tapestry::cpu
