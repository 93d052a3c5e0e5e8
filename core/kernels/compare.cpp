// Comparisons on the CPU: rows cut into blocks, blocks spread over threads; an operand repeats along a row or it does
// not, so each block is one of three plain loops.
#include "core/kernels/compare.h"

#include <cmath>
#include <functional>
#include <type_traits>

#include "core/kernels/pointwise_map.h"

namespace tapestry {

Tensor compare(Comparison comparison, const Tensor& a, const Tensor& b) {
  TAP_CHECK(a.dtype() == b.dtype(), "compare: operands must have one dtype, not ", a.dtype(), " and ", b.dtype(),
            "; convert one with Tensor::to");
  Tensor y = empty(broadcast("compare", a.shape(), b.shape()), DType::u8, a.device());
  TAP_DISPATCH(compare_forward, comparison, a, b, y);
  return y;
}

Tensor operand_like(const Tensor& x, double value) {
  Tensor t = full({}, value, x.dtype(), x.device());
  const bool floating = x.dtype() == DType::f64 || x.dtype() == DType::f32;
  TAP_CHECK(floating || t.item() == value, "compare: ", value, " is not a value of ", x.dtype(),
            "; convert the tensor with Tensor::to");
  return t;
}

namespace cpu {
namespace {

template <class T, class F>
void compare_all(const Tensor& a, const Tensor& b, Tensor& y, F f) {
  const Shape& shape = y.shape();
  const StridedWalk<3> walk(
      shape, {broadcast_strides(a.shape(), shape), broadcast_strides(b.shape(), shape), shape.strides()});
  if (walk.numel == 0) return;
  const std::int64_t inner = walk.inner(), block = std::min(inner, kMapBlock), blocks = (inner + block - 1) / block;
  const T *from_a = a.data<T>(), *from_b = b.data<T>();
  std::uint8_t* to = y.mutable_data<std::uint8_t>();
  parallel_for(walk.rows() * blocks, std::max<std::int64_t>(1, kMapSerial / block), [&](auto begin, auto end) {
    RowCursor<3> row(walk, begin / blocks);
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t at = item % blocks * block, n = std::min(block, inner - at);
      const T* u = from_a + row.offset(0) + at * walk.inner_stride(0);
      const T* v = from_b + row.offset(1) + at * walk.inner_stride(1);
      std::uint8_t* __restrict__ out = to + row.offset(2) + at;
      if (walk.inner_stride(0) == 0)
        for (std::int64_t i = 0; i < n; ++i) out[i] = f(u[0], v[i * walk.inner_stride(1)]);
      else if (walk.inner_stride(1) == 0)
        for (std::int64_t i = 0; i < n; ++i) out[i] = f(u[i], v[0]);
      else
        for (std::int64_t i = 0; i < n; ++i) out[i] = f(u[i], v[i]);
      if (at + n == inner) row.next();
    }
  });
}

}  // namespace

void compare_forward(Comparison comparison, const Tensor& a, const Tensor& b, Tensor& y) {
  TAP_CHECK(broadcast("compare", a.shape(), b.shape()) == y.shape(), "compare: y must have the broadcast shape of a ",
            a.shape(), " and b ", b.shape(), ", not ", y.shape());
  visit_dtype(a.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_arithmetic_v<T>) {
      switch (comparison) {
        case Comparison::equal:
          return compare_all<T>(a, b, y, std::equal_to<T>());
        case Comparison::not_equal:
          return compare_all<T>(a, b, y, std::not_equal_to<T>());
        case Comparison::less:
          return compare_all<T>(a, b, y, std::less<T>());
        case Comparison::less_equal:
          return compare_all<T>(a, b, y, std::less_equal<T>());
      }
    } else {
      fail("compare: takes no ", a.dtype(), "; convert the operands with Tensor::to(DType::f32)");
    }
  });
}

}  // namespace cpu
}  // namespace tapestry
