// The engine of bf16 products on processors with AVX512-BF16: vdpbf16ps adds the products of two neighbouring terms to
// each of 16 sums. The tile is 12 rows of 32 columns: 24 registers of sums, 2 for a row of b, 1 for an element of a.
// b is packed in strips of 32 columns whose terms lie in pairs; of a, a pair is broadcast to a whole register: where
// its rows hold whole pairs they are read in place. The instruction takes subnormals for zero and rounds after each of
// the two additions, whatever the thread's mode; so does packing when it rounds f32 to bf16.
#pragma once

#ifdef __AVX512BF16__
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/kernels/gemm_kernel.h"
#include "core/kernels/gemm_mixed.h"

namespace tapestry::cpu::detail {

// Sums of products of one tile, or added to what is there: pair q of row i of a is at a + i * a_row + q * a_step, pair
// q of all 32 columns of b at b + q * 64.
template <int kRows, int kVectors>
void multiply_pairs(std::int64_t pairs, const BFloat16* a, std::int64_t a_row, std::int64_t a_step, const BFloat16* b,
                    float* c, std::int64_t ldc, bool add) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      _mm_prefetch(reinterpret_cast<const char*>(c + i * ldc + v * 16), _MM_HINT_T0);
      sum[i][v] = _mm512_setzero_ps();
    }
  // A pointer for every third row, so that the rows in between are within the reach of scaled addresses.
  constexpr int kPointers = (kRows + 2) / 3;
  const BFloat16* rows[kPointers];
#pragma GCC unroll 4
  for (int i = 0; i < kPointers; ++i) rows[i] = a + 3 * i * a_row;
  for (std::int64_t q = 0; q < pairs; ++q, b += 64) {
    __m512i right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) right[v] = _mm512_load_si512(b + 32 * v);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      int pair;
      std::memcpy(&pair, rows[i / 3] + i % 3 * a_row, sizeof(pair));
      __m512i left = _mm512_set1_epi32(pair);
      asm("" : "+v"(left));  // one broadcast into a register, not one for each use of it
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_dpbf16_ps(sum[i][v], (__m512bh)left, (__m512bh)right[v]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kPointers; ++i) rows[i] += a_step;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + i * ldc + v * 16;
      if (add) sum[i][v] = _mm512_add_ps(sum[i][v], _mm512_loadu_ps(to));
      _mm512_storeu_ps(to, sum[i][v]);
    }
}

inline __mmask16 first_lanes(std::int64_t n) {
  return n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
}

// 16 columns of two rows, the terms p and p + 1, as pairs.
inline __m512i pair_rows(__m512i rows) {
  alignas(64) static constexpr std::uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), rows);
}
inline __m512i pair_rows(const BFloat16* x, const BFloat16* y, __mmask16 mask_x, __mmask16 mask_y) {
  constexpr __mmask8 kAll = 0xff;  // GCC 12 warns of the unmasked form
  return pair_rows(_mm512_maskz_inserti64x4(kAll, _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask_x, x)),
                                            _mm256_maskz_loadu_epi16(mask_y, y), 1));
}
inline __m512i pair_rows(const float* x, const float* y, __mmask16 mask_x, __mmask16 mask_y) {
  return pair_rows((__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(mask_y, y), _mm512_maskz_loadu_ps(mask_x, x)));
}

// The first n (at most 32) terms of a row as 16 pairs, zeros after them.
inline __m512i pairs_of_row(const BFloat16* x, std::int64_t n) {
  return _mm512_maskz_loadu_epi16(n >= 32 ? ~0u : (1u << n) - 1, x);
}
inline __m512i pairs_of_row(const float* x, std::int64_t n) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(first_lanes(n - 16), x + 16),
                                      _mm512_maskz_loadu_ps(first_lanes(n), x));
}

// n columns of k stored rows in strips of kWidth: pair q of column j is at to + j / kWidth * strip + q * 2 * kWidth +
// j % kWidth * 2. Whole rows are read (strip by strip is half as fast from memory) and written 64 bytes at a time, past
// the end of a strip where kWidth is no multiple of 16: the space between strips takes that.
template <int kWidth, class S>
void pack_pairs(const S* from, std::int64_t ld, std::int64_t k, std::int64_t n, BFloat16* to, std::int64_t strip) {
  constexpr int kChunks = (kWidth + 15) / 16;
  for (std::int64_t p = 0; p < k; p += 2, from += 2 * ld, to += 2 * kWidth) {
    const S* next = p + 1 < k ? from + ld : from;
    const __mmask16 second = p + 1 < k ? 0xffff : 0;
    BFloat16* out = to;
    std::int64_t j = 0;
    for (; j + kChunks * 16 <= n; j += kWidth, out += strip)
      for (int c = 0; c < kChunks; ++c)
        _mm512_storeu_si512(out + 32 * c, pair_rows(from + j + 16 * c, next + j + 16 * c, 0xffff, second));
    for (; j < n; j += kWidth, out += strip)
      for (int c = 0; c < kChunks; ++c) {
        const __mmask16 mask = first_lanes(std::min<std::int64_t>(kWidth, n - j) - 16 * c);
        _mm512_storeu_si512(out + 32 * c, pair_rows(from + j + 16 * c, next + j + 16 * c, mask, mask & second));
      }
  }
}

// One strip of n (at most 32) columns of a transposed b: the terms run along its stored rows.
template <class S>
void pack_transposed_pairs(const S* b, std::int64_t ldb, std::int64_t k, std::int64_t n, BFloat16* to) {
  for (std::int64_t c = 0; c < 32; c += 16)
    for (std::int64_t p = 0; p < k; p += 32) {
      const S* from = b + c * ldb + p;
      simd::Vec<float> rows[16];
      if (c + 16 <= n && p + 32 <= k) {
#pragma GCC unroll 16
        for (int j = 0; j < 16; ++j) rows[j] = (simd::Vec<float>)pairs_of_row(from + j * ldb, 32);
      } else {
        for (int j = 0; j < 16; ++j)
          rows[j] = c + j < n ? (simd::Vec<float>)pairs_of_row(from + j * ldb, k - p) : simd::Vec<float>{};
      }
      transpose_square<float>(rows);
      const std::int64_t pairs = std::min<std::int64_t>(16, (k - p + 1) / 2);
      for (std::int64_t q = 0; q < pairs; ++q) _mm512_store_si512(to + (p / 2 + q) * 64 + 2 * c, (__m512i)rows[q]);
    }
}

struct Bf16Engine {
  using Element = BFloat16;
  static constexpr std::int64_t kRows = 12, kColumns = 32;
  static constexpr std::int64_t kDepth = 768, kPanelElements = 640 * 1024 / 2;  // of b, within the level 2 cache
  // What choose_grid counts.
  static constexpr std::int64_t kPackingB = 8, kPackingA = 8, kReadingA = 2;
  // Between strips: room for pack_pairs, and a shift of cache sets from strip to strip.
  static constexpr std::int64_t kGap = 64;

  // f16 beside bf16 is for fp32: rounding it would lose three of its bits.
  static bool takes(const MixedGemm& g) {
    return (g.a.dtype == DType::bf16 || g.b.dtype == DType::bf16) && g.a.dtype != DType::f16 && g.b.dtype != DType::f16;
  }
  // Rows a multiple of 4 KiB apart would share the sets of the level 1 cache.
  static bool reads_in_place(const MixedGemm& g) {
    return g.a.dtype == DType::bf16 && !g.transpose_a && g.k % 2 == 0 && g.lda % 2048 != 0;
  }

  template <class F>
  static decltype(auto) visit(ConstFloats x, F&& f) {
    if (x.dtype == DType::f32) return f(reinterpret_cast<const float*>(x.data));
    return f(reinterpret_cast<const BFloat16*>(x.data));
  }

  // Where the tiles of a lie: pair q of row i of tile t is at data + t * tile + i * row + q * step.
  struct Left {
    const BFloat16* data;
    std::int64_t row, step, tile;
  };
  // Elements that a block of packed a needs.
  static std::int64_t left_size(std::int64_t rows, std::int64_t k) { return (rows + kRows) * (round_up(k, 32) + kGap); }
  template <class S>
  static Left pack_left(const S* a, std::int64_t lda, bool transposed, std::int64_t rows, std::int64_t k,
                        BFloat16* to) {
    if (transposed) {
      const std::int64_t strip = round_up(k, 2) * kRows + kGap;
      pack_pairs<kRows>(a, lda, k, rows, to, strip);
      return {to, 2, 2 * kRows, strip};
    }
    const std::int64_t row = (divide_up(k, 32) | 1) * 32;  // an odd number of cache lines
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t p = 0; p < k; p += 32)
        _mm512_store_si512(to + i * row + p, pairs_of_row(a + i * lda + p, k - p));
    return {to, row, 2, kRows * row};
  }
  static Left left_in_place(const BFloat16* a, std::int64_t lda) { return {a, lda, 2, kRows * lda}; }

  static std::int64_t strip_size(std::int64_t k) { return round_up(k, 2) * kColumns + kGap; }
  template <class S>
  static void pack_right(const S* b, std::int64_t ldb, bool transposed, std::int64_t k, std::int64_t n, BFloat16* to) {
    if (!transposed) return pack_pairs<kColumns>(b, ldb, k, n, to, strip_size(k));
    for (std::int64_t j = 0; j < n; j += kColumns)
      pack_transposed_pairs(b + j * ldb, ldb, k, std::min(kColumns, n - j), to + j / kColumns * strip_size(k));
  }

  // c = a b, or c += a b, for one tile of `rows` rows and `vectors` times 16 columns.
  static void multiply(std::int64_t k, const Left& a, const BFloat16* b, float* c, std::int64_t ldc, bool add,
                       std::int64_t rows, std::int64_t vectors) {
    static constexpr auto kKernels = []<std::size_t... I>(std::index_sequence<I...>) {
      return std::array{&multiply_pairs<1 + I / 2, 1 + I % 2>...};
    }
    (std::make_index_sequence<2 * kRows>{});
    kKernels[static_cast<std::size_t>(2 * rows - 3 + vectors)]((k + 1) / 2, a.data, a.row, a.step, b, c, ldc, add);
  }
};

}  // namespace tapestry::cpu::detail
#endif
