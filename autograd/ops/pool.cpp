#include "core/kernels/pool.h"

#include <algorithm>
#include <limits>

#include "autograd/ops.h"

namespace tapestry {
namespace {

// x [N, C, L] or [N, C, H, W], and what is left of it.
struct Pooling {
  PoolLayout layout;
  Shape result;

  Pooling(const char* op, const Shape& x, const Window& window, bool two_axes) {
    TAP_CHECK(x.rank() == (two_axes ? 4 : 3), op, ": x must be ", two_axes ? "[N, C, H, W]" : "[N, C, L]", ", not ", x);
    layout = {x[0] * x[1], two_axes ? x[2] : 1, x[-1], window};
    check_window(op, window, Shape{x[0], x[1], layout.height, layout.width});
    check_reach(op, window.h, layout.height, x);
    check_reach(op, window.w, layout.width, x);
    result = two_axes ? Shape{x[0], x[1], layout.rows(), layout.columns()} : Shape{x[0], x[1], layout.columns()};
  }

  // With the padding half the size at most, only such a dilation lets a window step over all elements.
  static void check_reach(const char* op, const WindowAxis& axis, std::int64_t extent, const Shape& x) {
    TAP_CHECK(axis.size == 1 || axis.dilation <= extent, op, ": a window with dilation ", axis.dilation,
              " over an axis of ", extent, " would lie wholly in the padding, x is ", x,
              "; the dilation must not exceed the axis");
  }
};

Var max_pool(const char* op, const Var& x, const Pooling& p) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  TAP_CHECK(p.layout.width <= kMost / std::max<std::int64_t>(p.layout.height, 1), op,
            ": a channel must have less than 2^31 elements, x is ", x.shape());
  Tensor y = empty(p.result, x.dtype(), x.device()), position = empty(p.result, DType::i32, x.device());
  TAP_DISPATCH(max_pool_forward, x.value(), p.layout, y, position);
  return record(
      op, y,
      [y = save(y), position, layout = p.layout](const Tensor& dy, Grad dx) {
        TAP_DISPATCH(max_pool_backward, dy, y(), position, layout, dx);
      },
      x);
}

Var avg_pool(const char* op, const Var& x, const Pooling& p, bool count_include_pad) {
  Tensor y = empty(p.result, x.dtype(), x.device());
  TAP_DISPATCH(avg_pool_forward, x.value(), p.layout, count_include_pad, y);
  return record(
      op, y,
      [layout = p.layout, count_include_pad](const Tensor& dy, Grad dx) {
        TAP_DISPATCH(avg_pool_backward, dy, layout, count_include_pad, dx);
      },
      x);
}

}  // namespace

Var max_pool1d(const Var& x, const MaxPool1dOptions& options) {
  return max_pool("max_pool1d", x, {"max_pool1d", x.shape(), pool_window("max_pool1d", options), false});
}
Var max_pool2d(const Var& x, const MaxPool2dOptions& options) {
  return max_pool("max_pool2d", x, {"max_pool2d", x.shape(), pool_window("max_pool2d", options), true});
}
Var avg_pool1d(const Var& x, const AvgPool1dOptions& options) {
  return avg_pool("avg_pool1d", x, {"avg_pool1d", x.shape(), pool_window("avg_pool1d", options), false},
                  options.count_include_pad);
}
Var avg_pool2d(const Var& x, const AvgPool2dOptions& options) {
  return avg_pool("avg_pool2d", x, {"avg_pool2d", x.shape(), pool_window("avg_pool2d", options), true},
                  options.count_include_pad);
}

}  // namespace tapestry
