// A row keeps one range of columns; forward and backward are the same map. Nothing is saved.
#include "core/kernels/triangle.h"

#include "core/kernels/rows.h"

namespace tapestry::cpu {
namespace {

// to = the triangle of from, or += it.
template <class T>
void triangle(const T* from, const Shape& shape, bool lower, std::int64_t diagonal, T* to, bool add) {
  const std::int64_t rows = shape[-2], columns = shape[-1];
  diagonal = std::clamp(diagonal, -rows, columns);  // no more triangles than that, and no overflow below
  parallel_rows(shape.rows(), columns, [=](std::int64_t at) {
    const std::int64_t row = at % rows;
    const std::int64_t edge = std::clamp<std::int64_t>(row + diagonal + (lower ? 1 : 0), 0, columns);
    const std::int64_t begin = lower ? 0 : edge, end = lower ? edge : columns;
    const T* p = from + at * columns;
    T* q = to + at * columns;
    if (add) {
      for (std::int64_t c = begin; c < end; ++c) q[c] += p[c];
      return;
    }
    std::fill(q, q + begin, T(0));
    std::copy(p + begin, p + end, q + begin);
    std::fill(q + end, q + columns, T(0));
  });
}

}  // namespace

void triangle_forward(const Tensor& x, bool lower, std::int64_t diagonal, Tensor& y) {
  visit_float("triangle", x.dtype(), [&]<class T>(TypeTag<T>) {
    triangle(x.data<T>(), x.shape(), lower, diagonal, y.mutable_data<T>(), false);
  });
}

void triangle_backward(const Tensor& dy, bool lower, std::int64_t diagonal, Grad dx) {
  if (!dx) return;
  const bool add = dx.claim();
  visit_float("triangle", dy.dtype(),
              [&]<class T>(TypeTag<T>) { triangle(dy.data<T>(), dy.shape(), lower, diagonal, dx.data<T>(), add); });
}

}  // namespace tapestry::cpu
