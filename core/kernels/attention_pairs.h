// bf16 factors of the products in attention, on the register tile of bf16 matrix products (gemm_bf16.h): pairs along
// the summed dimension. The instruction takes subnormal numbers for zero, and so does the rounding of weights to bf16.
#pragma once

#include "core/dtype.h"
#include "core/kernels/gemm_bf16.h"

namespace tapestry::cpu::attn {

#ifdef __AVX512BF16__
inline constexpr bool kHasPairs = true;
#else
inline constexpr bool kHasPairs = false;
#endif

inline constexpr std::int64_t kPairTileRows = 12, kPairTileVectors = 2, kPairTileColumns = 32;

// detail::Tile with pairs for elements: pair p of row i of a is at a + i * a_row + p * a_step; k counts pairs, and
// those of b follow each other.
struct PairTile {
  std::int64_t k = 0;
  const BFloat16* a = nullptr;
  std::int64_t a_row = 0, a_step = 0;
  const BFloat16* b = nullptr;
  std::int64_t b_step = 2 * kPairTileColumns;
  float* c = nullptr;
  std::int64_t ldc = 0;
  const float* addend = nullptr;  // c or null
};

#ifdef __AVX512BF16__

static_assert(detail::Bf16Engine::kRows == kPairTileRows && detail::Bf16Engine::kColumns == kPairTileColumns);

inline void multiply_tile(const PairTile& tile, std::int64_t rows, std::int64_t vectors) {
  detail::Bf16Engine::multiply(2 * tile.k, {tile.a, tile.a_row, tile.a_step, 0}, tile.b, tile.c, tile.ldc,
                               tile.addend != nullptr, rows, vectors);
}

// The counterpart of detail::pack_transposed for one strip of at most kPairTileColumns.
inline void pack_transposed(const BFloat16* b, std::int64_t ldb, std::int64_t k, std::int64_t columns, std::int64_t,
                            BFloat16* to) {
  detail::pack_transposed_pairs(b, ldb, k, columns, to);
}
inline void pack_row_pairs(const BFloat16* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                           std::int64_t strip, BFloat16* to) {
  detail::pack_pairs<kPairTileColumns>(x, stride, rows, columns, to, strip);
}

inline bool all_finite(const BFloat16* x, std::int64_t stride, std::int64_t rows, std::int64_t columns) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 found = 0;
  for (std::int64_t i = 0; i < rows; ++i, x += stride)
    for (std::int64_t j = 0; j < columns; j += 32) {
      const __m512i bits = detail::pairs_of_row(x + j, columns - j);
      found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(bits, exponent), exponent);
    }
  return found == 0;
}

// Rounds rows of whole vectors, `stride` apart on both sides; writes up to 15 elements more.
inline void round_rows(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, BFloat16* to) {
  for (std::int64_t i = 0; i < rows; ++i, from += stride, to += stride)
    for (std::int64_t j = 0; j < columns; j += 32)
      _mm512_storeu_si512(to + j, detail::pairs_of_row(from + j, columns - j));
}

// The same in pairs of rows: (from[0, j], from[1, j]) for all j, and so on; the pairs of rows lie 2 * stride apart.
inline void round_row_pairs(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                            BFloat16* to) {
  for (std::int64_t i = 0; i < rows; i += 2, from += 2 * stride, to += 2 * stride) {
    const bool paired = i + 1 < rows;
    const float* next = paired ? from + stride : from;
    for (std::int64_t j = 0; j < columns; j += 16)
      _mm512_storeu_si512(to + 2 * j, detail::pair_rows(from + j, next + j, 0xffff, paired ? 0xffff : 0));
  }
}

#endif

}  // namespace tapestry::cpu::attn
