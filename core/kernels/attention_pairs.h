// bf16 factors of the products in attention. They are kept in pairs along the summed dimension, which one instruction
// multiplies and adds up in fp32: the odd element of a pair first, each product rounded once. It takes subnormal
// numbers for zero, and so does the rounding of weights to bf16.
#pragma once

#include <array>
#include <cstring>

#include "core/dtype.h"
#include "core/kernels/gemm_kernel.h"

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace tapestry::cpu::attn {

#ifdef __AVX512BF16__
inline constexpr bool kHasPairs = true;
#else
inline constexpr bool kHasPairs = false;
#endif

inline constexpr std::int64_t kPairTileRows = 12, kPairTileVectors = 2;  // 24 of 32 registers

// detail::Tile with pairs for elements: pair p of row i of a is at a + i * a_row + p * a_step; k counts pairs.
struct PairTile {
  std::int64_t k = 0;
  const BFloat16* a = nullptr;
  std::int64_t a_row = 0, a_step = 0;
  const BFloat16* b = nullptr;
  std::int64_t b_step = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
  const float* addend = nullptr;
};

#ifdef __AVX512BF16__

template <int kRows, int kVectors>
void multiply_pairs(const PairTile& tile) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_setzero_ps();
  // A pointer for every third row: the rows between are reached by scaled addressing.
  const BFloat16* a[(kRows + 2) / 3];
#pragma GCC unroll 4
  for (int i = 0; i < (kRows + 2) / 3; ++i) a[i] = tile.a + 3 * i * tile.a_row;
  const BFloat16* b = tile.b;
  for (std::int64_t p = 0; p < tile.k; ++p, b += tile.b_step) {
    __m512i row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = _mm512_loadu_si512(b + 32 * v);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      std::int32_t bits;
      std::memcpy(&bits, a[i / 3] + i % 3 * tile.a_row, sizeof(bits));
      __m512i pair = _mm512_set1_epi32(bits);
      asm("" : "+v"(pair));  // broadcast once, not in each of the instructions that use it
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_dpbf16_ps(sum[i][v], (__m512bh)pair, (__m512bh)row[v]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < (kRows + 2) / 3; ++i) a[i] += tile.a_step;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      if (tile.addend) sum[i][v] = sum[i][v] + _mm512_loadu_ps(tile.addend + i * tile.ldc + 16 * v);
      _mm512_storeu_ps(tile.c + i * tile.ldc + 16 * v, sum[i][v]);
    }
}

inline void multiply_tile(const PairTile& tile, std::int64_t rows, std::int64_t vectors) {
  static constexpr auto kKernels = []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<void (*)(const PairTile&), sizeof...(I)>{
        &multiply_pairs<1 + I / kPairTileVectors, 1 + I % kPairTileVectors>...};
  }
  (std::make_index_sequence<kPairTileRows * kPairTileVectors>{});
  kKernels[static_cast<std::size_t>((rows - 1) * kPairTileVectors + vectors - 1)](tile);
}

// Sixteen columns, of which the first `count` exist (none below 1); the others are zero.
inline __m256i load_bf16(const BFloat16* p, std::int64_t count) {
  if (count >= 16) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << std::max<std::int64_t>(0, count)) - 1), p);
}
inline __m256i load_bf16(const float* p, std::int64_t count) {
  const auto mask = static_cast<__mmask16>(count >= 16 ? 0xffffu : (1u << std::max<std::int64_t>(0, count)) - 1);
  return (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, p));
}

// Rounds a row of whole vectors.
inline void round_row(const float* from, std::int64_t columns, BFloat16* to) {
  for (std::int64_t j = 0; j < columns; j += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j), load_bf16(from + j, 16));
}

// Packs x [rows, columns] as pairs of rows, each 2 * width long: (x[0, j], x[1, j]) for all j, and so on; width is
// columns in whole vectors, and what does not exist is zero. Returns whether all numbers are finite.
template <class From>
bool pack_pairs(const From* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, std::int64_t width,
                BFloat16* out) {
  using Columns = std::uint16_t __attribute__((vector_size(32)));
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 infinite = 0;
  for (std::int64_t i = 0; i < rows; i += 2, x += 2 * stride, out += 2 * width) {
    const From* next = i + 1 < rows ? x + stride : x;
    for (std::int64_t j = 0; j < columns; j += 16) {
      const std::int64_t count = columns - j;
      const auto first = (Columns)load_bf16(x + j, count);
      const auto second = (Columns)load_bf16(next + j, i + 1 < rows ? count : 0);
      const auto both =
          (__m512i)__builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24,
                                           9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
      infinite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(both, exponent), exponent);
      _mm512_storeu_si512(out + 2 * j, both);
    }
  }
  return infinite == 0;
}

#endif

}  // namespace tapestry::cpu::attn
