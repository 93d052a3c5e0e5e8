// One copy between two strided layouts: permute, slice, flip, concat, split and expand are this kernel.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// Element (i0, i1, ...) of `shape` lies at offset + sum(i * stride), in elements. Stride 0 repeats a source element,
// a negative one runs backwards.
struct StridedLayout {
  std::int64_t offset = 0;
  std::array<std::int64_t, Shape::kMaxRank> strides{};
};

// target = source, any dtype; f32, f16 and bf16 may differ and are converted. Elements of target outside the layout are
// left alone.
TAP_KERNEL_16BIT(strided_copy, const Tensor& source, const StridedLayout& from, const Shape& shape,
                 const StridedLayout& to, Tensor& target)
// target += source, floating dtypes, which may differ where neither is f64. The target layout must not visit an element
// twice.
TAP_KERNEL_16BIT(strided_add, const Tensor& source, const StridedLayout& from, const Shape& shape,
                 const StridedLayout& to, Tensor& target)

}  // namespace tapestry
