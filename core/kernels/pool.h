// Maximum and average over the windows that slide over each plane [H, W] of x; a plane is one channel of one sample.
// The padding counts as -inf for the maximum and as 0 for the average.
#pragma once

#include "core/kernels/kernel.h"
#include "core/kernels/window.h"

namespace tapestry {

// Extent is std::int64_t for a window along one axis, HeightWidth along two. Padding may be half the size at most.
template <class Extent>
struct MaxPoolOptions {
  Extent size;
  Extent stride = 0;  // 0: the size, so that windows lie side by side
  Extent padding = 0;
  Extent dilation = 1;
};
template <class Extent>
struct AvgPoolOptions {
  Extent size;
  Extent stride = 0;  // 0: the size
  Extent padding = 0;
  bool count_include_pad = true;  // divide by the size; false: by how many elements of the window are not padding
};
using MaxPool1dOptions = MaxPoolOptions<std::int64_t>;
using MaxPool2dOptions = MaxPoolOptions<HeightWidth>;
using AvgPool1dOptions = AvgPoolOptions<std::int64_t>;
using AvgPool2dOptions = AvgPoolOptions<HeightWidth>;

// The window of such options; throws and names `op` for what no x can fit.
Window pool_window(const char* op, const MaxPool1dOptions& options);
Window pool_window(const char* op, const MaxPool2dOptions& options);
Window pool_window(const char* op, const AvgPool1dOptions& options);
Window pool_window(const char* op, const AvgPool2dOptions& options);

struct PoolLayout {
  std::int64_t planes = 1, height = 1, width = 1;  // of x
  Window window;

  std::int64_t rows() const { return window.h.positions(height); }  // of y
  std::int64_t columns() const { return window.w.positions(width); }
};

// position (i32): where in its plane each maximum lies. The first of equal elements counts, and the first NaN before
// any number. Every window holds an element.
TAP_KERNEL(max_pool_forward, const Tensor& x, const PoolLayout& layout, Tensor& y, Tensor& position)
// dx sums dy over the windows whose maximum lies there, in order of the windows; NaN where y is NaN.
TAP_KERNEL(max_pool_backward, const Tensor& dy, const Tensor& y, const Tensor& position, const PoolLayout& layout,
           Grad dx)
// Of windows without dilation.
TAP_KERNEL(avg_pool_forward, const Tensor& x, const PoolLayout& layout, bool count_include_pad, Tensor& y)
TAP_KERNEL(avg_pool_backward, const Tensor& dy, const PoolLayout& layout, bool count_include_pad, Grad dx)

}  // namespace tapestry
