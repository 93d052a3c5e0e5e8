// CPU kernel of muon.h. The polynomial a I + b A + c A^2 is formed before X is multiplied, so an iteration is three
// products and one pass over A. A tall matrix is iterated from the right, X (a I + b A + c A^2) with A = X^T X, which
// is the same without a transpose.
#include "core/kernels/muon.h"

#include <cmath>
#include <utility>

#include "core/kernels/gemm.h"
#include "core/kernels/optimizer_map.h"

namespace tapestry::cpu {

namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

// square = a I + b gram + c square, both n x n.
template <class T>
void polynomial(const T* gram, T* square, std::int64_t n) {
  for_blocks({0, n * n}, [&](std::int64_t begin, std::int64_t end) {
    map_flat(square, gram, std::array<T*, 0>{}, begin, end,
             [](auto& s, auto g) { s = static_cast<T>(kB) * g + static_cast<T>(kC) * s; });
  });
  for (std::int64_t i = 0; i < n; ++i) square[i * (n + 1)] += static_cast<T>(kA);
}

// Newton-Schulz from x, which is overwritten; returns the memory that holds the result: x or spare.
template <class T>
T* orthogonalize(T* x, T* spare, T* gram, T* square, std::int64_t rows, std::int64_t columns, int iterations) {
  const bool tall = rows > columns;
  const std::int64_t n = std::min(rows, columns), k = std::max(rows, columns);
  for (int i = 0; i < iterations; ++i) {
    gemm<T>({.m = n,
             .n = n,
             .k = k,
             .transpose_a = tall,
             .transpose_b = !tall,
             .a = x,
             .b = x,
             .c = gram,
             .lda = columns,
             .ldb = columns,
             .ldc = n});
    gemm<T>({.m = n, .n = n, .k = n, .a = gram, .b = gram, .c = square, .lda = n, .ldb = n, .ldc = n});
    polynomial(gram, square, n);
    gemm<T>({.m = rows,
             .n = columns,
             .k = n,
             .a = tall ? x : square,
             .b = tall ? square : x,
             .c = spare,
             .lda = n,
             .ldb = columns,
             .ldc = columns});
    std::swap(x, spare);
  }
  return x;
}

}  // namespace

void muon_update(Tensor& value, const Tensor& grad, Tensor& velocity, const MuonStep& step) {
  const Shape& shape = value.shape();
  TAP_CHECK(shape.rank() == 2 && grad.shape() == shape && velocity.shape() == shape, "muon_update: value ", shape,
            ", grad ", grad.shape(), " and velocity ", velocity.shape(), " must be matrices of one shape");
  const FlatRange all{0, value.numel()};
  if (all.end == 0) return;
  const std::int64_t n = std::min(shape[0], shape[1]);
  const MemoryScope scope(MemoryCategory::workspace);
  Tensor x = empty_like(value), spare = empty_like(value), gram = empty({n, n}, value.dtype()),
         square = empty_like(gram);
  visit_float("muon_update", value.dtype(), [&]<class T>(TypeTag<T>) {
    T *const u = x.mutable_data<T>(), *const v = velocity.mutable_data<T>(), *const p = value.mutable_data<T>();
    const T momentum = static_cast<T>(step.momentum), rest = static_cast<T>((1 - step.momentum) * step.grad_scale);
    const T from_grad = step.nesterov ? rest : T(0), from_velocity = step.nesterov ? momentum : T(1);
    for_blocks(all, [&](std::int64_t begin, std::int64_t end) {
      map_flat(v, grad.data<T>(), std::array{u}, begin, end, [=](auto& m, auto g, auto& direction) {
        m = momentum * m + rest * g;
        direction = from_grad * g + from_velocity * m;
      });
    });
    double sum = 0;
    square_sum(x, all, sum);
    const T scale = static_cast<T>(1 / std::max(std::sqrt(sum), step.eps));
    for_blocks(all, [&](std::int64_t begin, std::int64_t end) {
      map_flat(u, u, std::array<T*, 0>{}, begin, end, [=](auto& y, auto) { y = scale * y; });
    });
    const T* const result = orthogonalize(u, spare.mutable_data<T>(), gram.mutable_data<T>(), square.mutable_data<T>(),
                                          shape[0], shape[1], step.iterations);
    const T keep = static_cast<T>(1 - step.lr * step.weight_decay), rate = static_cast<T>(step.rate);
    for_blocks(all, [&](std::int64_t begin, std::int64_t end) {
      map_flat(p, result, std::array<T*, 0>{}, begin, end,
               [=](auto& y, auto direction) { y = keep * y - rate * direction; });
    });
  });
}

}  // namespace tapestry::cpu
