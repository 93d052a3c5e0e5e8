// x is seen as [outer, n, inner]; a tile of neighbouring columns runs down the axis with its sums in double, which the
// stored ones are rounded from. Backward runs up. Nothing is saved.
#include "core/kernels/cumsum.h"

#include "core/kernels/rows.h"

namespace tapestry::cpu {

namespace {

template <class T>
void running_sum(const T* x, const Shape& shape, int axis, bool upwards, T* y, bool add) {
  constexpr std::int64_t kColumns = 64;
  if (shape.numel() == 0) return;
  const std::int64_t n = shape[axis], inner = shape.strides()[axis], outer = shape.numel() / (n * inner);
  const std::int64_t tiles = (inner + kColumns - 1) / kColumns;
  parallel_rows(outer * tiles, n * std::min(inner, kColumns), [=](std::int64_t item) {
    const std::int64_t column = item % tiles * kColumns;
    const auto run = [=](auto width) {
      double sums[kColumns] = {};
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t at = (item / tiles * n + (upwards ? n - 1 - i : i)) * inner + column;
        for (std::int64_t c = 0; c < width; ++c) {
          sums[c] += x[at + c];
          y[at + c] = add ? y[at + c] + static_cast<T>(sums[c]) : static_cast<T>(sums[c]);
        }
      }
    };
    // A width that the compiler knows keeps a single sum in a register.
    if (inner == 1)
      run(std::integral_constant<std::int64_t, 1>{});
    else
      run(std::min(kColumns, inner - column));
  });
}

}  // namespace

void cumsum_forward(const Tensor& x, int axis, Tensor& y) {
  visit_float("cumsum", x.dtype(), [&]<class T>(TypeTag<T>) {
    running_sum(x.data<T>(), x.shape(), axis, false, y.mutable_data<T>(), false);
  });
}

void cumsum_backward(const Tensor& dy, int axis, Grad dx) {
  if (!dx) return;
  visit_float("cumsum", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim();
    running_sum(dy.data<T>(), dy.shape(), axis, true, dx.data<T>(), add);
  });
}

}  // namespace tapestry::cpu
