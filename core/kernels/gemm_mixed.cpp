// One driver for two engines: Bf16Engine multiplies pairs of bf16 (gemm_bf16.h), Fp32Engine converts while packing and
// uses the register tile of the fp32 product. An engine packs blocks of a and b, each once within a part of c, and
// gives the fp32 sums of one tile; what else belongs to c is done to the finished tile in the level 1 cache. k is cut
// into blocks by its size alone. Sums of several blocks are kept in fp32, beside c if that has 16 bits.
#include "core/kernels/gemm_mixed.h"

#include <type_traits>

#include "core/kernels/gemm_bf16.h"
#include "core/kernels/gemm_row.h"
#include "core/kernels/pointwise_formulas.h"
#include "core/kernels/rows.h"

namespace tapestry::cpu {
namespace {

using detail::divide_up, detail::round_up;

struct Fp32Engine {
  using Element = float;
  static constexpr std::int64_t kRows = detail::kTileRows, kColumns = detail::kTileColumns<float>;
  static constexpr std::int64_t kDepth = 512, kPanelElements = 640 * 1024 / 4;
  static constexpr std::int64_t kPackingB = 8, kPackingA = 8, kReadingA = 4;

  static bool reads_in_place(const MixedGemm& g) { return g.a.dtype == DType::f32 && !g.transpose_a; }

  template <class F>
  static decltype(auto) visit(ConstFloats x, F&& f) {
    return visit_floats(x, std::forward<F>(f));
  }

  struct Left {
    const float* data;
    std::int64_t row, step, tile;
  };
  static std::int64_t left_size(std::int64_t rows, std::int64_t k) { return (rows + kRows) * (round_up(k, 16) + 16); }
  template <class S>
  static Left pack_left(const S* a, std::int64_t lda, bool transposed, std::int64_t rows, std::int64_t k, float* to) {
    if (transposed) {
      detail::pack_tiles(a, lda, rows, k, to);
      return {to, 1, kRows, detail::tile_stride<float>(k)};
    }
    const std::int64_t row = (divide_up(k, 16) | 1) * 16;  // an odd number of cache lines
    for (std::int64_t i = 0; i < rows; ++i) detail::copy_as(a + i * lda, k, to + i * row);
    return {to, row, 1, kRows * row};
  }
  static Left left_in_place(const float* a, std::int64_t lda) { return {a, lda, 1, kRows * lda}; }

  static std::int64_t strip_size(std::int64_t k) { return k * kColumns; }
  template <class S>
  static void pack_right(const S* b, std::int64_t ldb, bool transposed, std::int64_t k, std::int64_t n, float* to) {
    for (std::int64_t j = 0; j < n; j += kColumns, to += strip_size(k)) {
      const std::int64_t columns = std::min(kColumns, n - j);
      if (transposed)
        detail::pack_transposed(b + j * ldb, ldb, k, columns, kColumns, to);
      else
        detail::pack_rows(b + j, ldb, k, columns, kColumns, to);
    }
  }

  static void multiply(std::int64_t k, const Left& a, const float* b, float* c, std::int64_t ldc, bool add,
                       std::int64_t rows, std::int64_t vectors) {
    detail::multiply_tile<float>({k, a.data, a.row, a.step, b, kColumns, c, ldc, add ? c : nullptr, nullptr}, rows,
                                 vectors);
  }
};

// Calls f(Engine) with the one for g.
template <class F>
decltype(auto) visit_engine([[maybe_unused]] const MixedGemm& g, F&& f) {
#ifdef __AVX512BF16__
  if (detail::Bf16Engine::takes(g)) return f(detail::Bf16Engine());
#endif
  return f(Fp32Engine());
}

// What is added to sums that are finished, and where they go.
struct Ending {
  const float* partial = nullptr;  // sums of the terms before
  std::int64_t partial_stride = 0;
  ConstFloats bias, addend;  // an addend and gelu are laid out as c
  Floats c, gelu;
  std::int64_t ldc = 0;
  GeluForm form = GeluForm::erf;

  Ending at(std::int64_t i, std::int64_t j) const {
    Ending e = *this;
    if (e.partial) e.partial += i * partial_stride + j;
    if (e.bias) e.bias += j;
    if (e.addend) e.addend += i * ldc + j;
    if (e.gelu) e.gelu += i * ldc + j;
    e.c += i * ldc + j;
    return e;
  }
};

void finish(const Ending& e, const float* sums, std::int64_t stride, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i)
    for_each_vector<float>(columns, [&](std::int64_t j, auto count) {
      simd::Vec<float> v = simd::load_partial(sums + i * stride + j, count);
      if (e.partial) v += simd::load_partial(e.partial + i * e.partial_stride + j, count);
      if (e.bias) v += simd::load_floats(e.bias + j, count);
      const std::int64_t at = i * e.ldc + j;
      if (e.addend) v += simd::load_floats(e.addend + at, count);
      simd::store_floats(e.c + at, v, count);
      if (e.gelu) {
        v = simd::rounded_to(e.c.dtype, v);
        simd::store_floats(e.gelu + at, e.form == GeluForm::erf ? formula::Gelu::f(v) : formula::GeluTanh::f(v), count);
      }
    });
}

template <class Engine>
struct Scratches {
  detail::Scratch<typename Engine::Element> a, b;
  detail::Scratch<float> partial;
};
template <class Engine>
Scratches<Engine>& scratch() {
  static thread_local Scratches<Engine> instance;
  return instance;
}

// Blocks of n as equal as multiples of `unit` can be, none much larger than `most`.
std::int64_t even_block(std::int64_t n, std::int64_t most, std::int64_t unit) {
  return round_up(divide_up(n, divide_up(n, most)), unit);
}

template <class Engine>
typename Engine::Left prepare_left(const MixedGemm& g, std::int64_t p0, std::int64_t k, Scratches<Engine>& memory) {
  const ConstFloats a = g.a + (g.transpose_a ? p0 * g.lda : p0);
  if (Engine::reads_in_place(g))
    return Engine::left_in_place(reinterpret_cast<const typename Engine::Element*>(a.data), g.lda);
  typename Engine::Element* to = memory.a.get(Engine::left_size(g.m, k));
  return Engine::visit(a, [&](auto* from) { return Engine::pack_left(from, g.lda, g.transpose_a, g.m, k, to); });
}

// Some rows of c, block after block of terms; in each, panel after panel of b.
template <class Engine>
void multiply_rows(const MixedGemm& g, std::int64_t depth, std::int64_t width, Scratches<Engine>& memory) {
  constexpr std::int64_t kRows = Engine::kRows, kColumns = Engine::kColumns, kLanes = simd::kLanes<float>;
  const bool wide = g.c.dtype == DType::f32;
  const std::int64_t stride = wide ? g.ldc : round_up(g.n, kColumns);
  float* sums = wide ? reinterpret_cast<float*>(g.c.data) : g.k > depth ? memory.partial.get(g.m * stride) : nullptr;
  for (std::int64_t p0 = 0; p0 < g.k; p0 += depth) {
    const std::int64_t k = std::min(depth, g.k - p0);
    const bool last = p0 + k == g.k, accumulate = p0 > 0 || (wide && g.add);
    Ending ending;
    ending.partial = accumulate ? sums : nullptr;
    ending.partial_stride = stride;
    ending.c = g.c;
    ending.ldc = g.ldc;
    if (last) {
      ending.bias = g.bias;
      ending.addend = g.add && !wide ? ConstFloats(g.c) : g.residual;
      ending.gelu = g.gelu;
      ending.form = g.form;
    }
    const bool plain = last ? wide && !ending.bias && !ending.addend && !ending.gelu : true;
    const typename Engine::Left left = prepare_left<Engine>(g, p0, k, memory);
    for (std::int64_t j0 = 0; j0 < g.n; j0 += width) {
      const std::int64_t right = std::min(j0 + width, g.n), strip = Engine::strip_size(k);
      typename Engine::Element* panel = memory.b.get(divide_up(width, kColumns) * strip);
      Engine::visit(g.b + (g.transpose_b ? j0 * g.ldb + p0 : p0 * g.ldb + j0),
                    [&](auto* from) { Engine::pack_right(from, g.ldb, g.transpose_b, k, right - j0, panel); });
      for (std::int64_t i = 0; i < g.m; i += kRows)
        for (std::int64_t j = j0; j < right; j += kColumns) {
          const std::int64_t rows = std::min(kRows, g.m - i), columns = std::min(kColumns, right - j);
          typename Engine::Left tile = left;
          tile.data += i / kRows * left.tile;
          const auto multiply = [&](float* to, std::int64_t to_stride, bool add) {
            Engine::multiply(k, tile, panel + (j - j0) / kColumns * strip, to, to_stride, add, rows,
                             divide_up(columns, kLanes));
          };
          if (plain && (!wide || columns % kLanes == 0)) {
            multiply(sums + i * stride + j, stride, accumulate);
          } else {
            alignas(64) float buffer[kRows * kColumns];
            multiply(buffer, kColumns, false);
            finish(ending.at(i, j), buffer, kColumns, rows, columns);
          }
        }
    }
  }
}

template <class Engine>
std::int64_t panel_columns(std::int64_t depth) {
  return std::max(Engine::kColumns, Engine::kPanelElements / depth / Engine::kColumns * Engine::kColumns);
}

template <class Engine>
void multiply(const MixedGemm& g) {
  constexpr std::int64_t kBlockRows = 1008;  // of a, which share a packed panel of b
  const std::int64_t depth = even_block(g.k, Engine::kDepth, 32);
  const std::int64_t width = even_block(g.n, panel_columns<Engine>(depth), Engine::kColumns);
  const std::int64_t height = even_block(g.m, kBlockRows, Engine::kRows);
  for (std::int64_t i = 0; i < g.m; i += height)
    multiply_rows<Engine>(detail::part(g, i, std::min(height, g.m - i), 0, g.n), depth, width, scratch<Engine>());
}

// One row of c, or any number that are sums of nothing.
void multiply_row(const MixedGemm& g) {
  constexpr std::int64_t kColumns = 2048;  // of c, to stay in the level 1 cache
  const float* a = nullptr;
  if (g.k > 0 && g.a.dtype == DType::f32 && (!g.transpose_a || g.lda == 1)) {
    a = reinterpret_cast<const float*>(g.a.data);
  } else if (g.k > 0) {
    float* gathered = scratch<Fp32Engine>().a.get(g.k);
    visit_floats(g.a, [&](auto* from) {
      if (!g.transpose_a) return detail::copy_as(from, g.k, gathered);
      for (std::int64_t p = 0; p < g.k; ++p) gathered[p] = static_cast<float>(from[p * g.lda]);
    });
    a = gathered;
  }
  const Ending ending{nullptr, 0, g.bias, g.add ? ConstFloats(g.c) : g.residual, g.c, g.gelu, g.ldc, g.form};
  for (std::int64_t j = 0; j < g.n; j += kColumns) {
    const std::int64_t columns = std::min(kColumns, g.n - j);
    alignas(64) float sums[kColumns];
    std::fill_n(sums, columns, 0.0f);
    if (g.k > 0)
      visit_floats(g.b + (g.transpose_b ? j * g.ldb : j), [&](auto* from) {
        g.transpose_b ? detail::dot_all_rows(a, from, g.ldb, g.k, sums, columns)
                      : detail::add_all_rows(a, from, g.ldb, g.k, sums, columns);
      });
    finish(ending.at(0, j), sums, 0, g.m, columns);
  }
}

void multiply_serial(const MixedGemm& g, bool one_row) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0 || one_row) return multiply_row(g);
  visit_engine(g, [&]<class Engine>(Engine) { multiply<Engine>(g); });
}

detail::Grid choose_grid(const MixedGemm& g, std::int64_t threads) {
  return visit_engine(g, [&]<class Engine>(Engine) {
    const std::int64_t panel = panel_columns<Engine>(even_block(g.k, Engine::kDepth, 32));
    return detail::choose_grid(g.m, g.n, threads,
                               {Engine::kRows, Engine::kColumns, panel, Engine::kPackingB,
                                Engine::reads_in_place(g) ? Engine::kReadingA : Engine::kPackingA});
  });
}

}  // namespace

void gemm_serial(const MixedGemm& g) { multiply_serial(g, g.m == 1); }

void gemm(const MixedGemm& g) {
  const bool one_row = g.m == 1;
  const std::int64_t work = one_row ? g.n * g.k / detail::kReadsPerThread : g.m * g.n * g.k / detail::kWorkPerThread;
  const std::int64_t threads = std::clamp<std::int64_t>(work, 1, num_threads());
  if (threads == 1) return multiply_serial(g, one_row);
  const detail::Grid grid =
      one_row ? detail::Grid{1, round_up(divide_up(g.n, threads), simd::kLanes<float>)} : choose_grid(g, threads);
  detail::for_each_part(g, grid, [&](const MixedGemm& p) { multiply_serial(p, one_row); });
}

}  // namespace tapestry::cpu
