// How a matrix product is cut into parts of c, one for each thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/parallel.h"

namespace tapestry::cpu::detail {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

// What one thread should at least have to do: multiply-adds, or elements of b to read for a single row.
inline constexpr std::int64_t kWorkPerThread = 1 << 17, kReadsPerThread = 1 << 15;

// The part of g (a Gemm or a MixedGemm) that computes `rows` rows of c from i0 and `columns` columns from j0.
template <class Product>
Product part(Product g, std::int64_t i0, std::int64_t rows, std::int64_t j0, std::int64_t columns) {
  g.a += g.transpose_a ? i0 : i0 * g.lda;
  g.b += g.transpose_b ? j0 * g.ldb : j0;
  g.c += i0 * g.ldc + j0;
  if (g.bias) g.bias += j0;
  if (g.residual) g.residual += i0 * g.ldc + j0;
  if (g.gelu) g.gelu += i0 * g.ldc + j0;
  g.m = rows;
  g.n = columns;
  return g;
}

struct Grid {
  std::int64_t rows, columns;  // of one part
};

// The tile a part is made of, and what an element of an operand costs beside so many multiply-adds: one of b is packed
// once in every part, one of a is read (or packed) once for each panel of so many columns.
struct GridCosts {
  std::int64_t tile_rows, tile_columns, panel_columns, packing_b, reading_a;
};

// The cheapest grid of at most `threads` parts.
inline Grid choose_grid(std::int64_t m, std::int64_t n, std::int64_t threads, const GridCosts& costs) {
  Grid best{m, n};
  std::int64_t best_cost = INT64_MAX;
  for (std::int64_t down = 1; down <= threads; ++down) {
    const Grid grid{round_up(divide_up(m, down), costs.tile_rows),
                    round_up(divide_up(n, threads / down), costs.tile_columns)};
    const std::int64_t from_a = grid.rows * divide_up(grid.columns, costs.panel_columns);
    const std::int64_t cost = grid.rows * grid.columns + costs.packing_b * grid.columns + costs.reading_a * from_a;
    if (cost < best_cost) {
      best = grid;
      best_cost = cost;
    }
  }
  return best;
}

// Calls multiply(part) for all parts, spread over the threads.
template <class Product, class Multiply>
void for_each_part(const Product& g, const Grid& grid, Multiply&& multiply) {
  const std::int64_t down = divide_up(g.m, grid.rows), across = divide_up(g.n, grid.columns);
  parallel_for(down * across, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      const std::int64_t i = index / across * grid.rows, j = index % across * grid.columns;
      multiply(part(g, i, std::min(grid.rows, g.m - i), j, std::min(grid.columns, g.n - j)));
    }
  });
}

}  // namespace tapestry::cpu::detail
