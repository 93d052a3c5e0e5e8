// The geometry of a window that slides over the last two axes [H, W] of a tensor: what conv2d, unfold and pooling
// share. conv1d and its kin are the case H = 1.
#pragma once

#include <cstdint>

#include "core/error.h"
#include "core/shape.h"

namespace tapestry {

struct WindowAxis {
  std::int64_t size = 1, stride = 1, padding = 0, dilation = 1;

  // How many places the window has along an axis of `extent` elements with `padding` more at either end.
  std::int64_t positions(std::int64_t extent) const {
    const std::int64_t room = extent + 2 * padding - dilation * (size - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
  }
  // The element under tap `tap` at place `position`; below 0 or from the extent on it lies in the padding.
  std::int64_t element(std::int64_t position, std::int64_t tap) const {
    return position * stride - padding + tap * dilation;
  }
};

struct Window {
  WindowAxis h, w;
};

// A number for each of the two axes: {2, 1}, or 2 for both.
struct HeightWidth {
  constexpr HeightWidth(std::int64_t both) : h(both), w(both) {}
  constexpr HeightWidth(std::int64_t height, std::int64_t width) : h(height), w(width) {}
  std::int64_t h, w;
};

// Throws unless sizes, strides and dilations are at least 1, paddings at least 0 and every axis has a place.
inline void check_window(const char* op, const Window& window, const Shape& x) {
  const auto check = [&](const WindowAxis& axis, std::int64_t extent) {
    TAP_CHECK(axis.size >= 1 && axis.stride >= 1 && axis.dilation >= 1 && axis.padding >= 0, op,
              ": window size, stride and dilation must be at least 1 and padding at least 0, not ", axis.size, ", ",
              axis.stride, ", ", axis.dilation, " and ", axis.padding);
    TAP_CHECK(axis.positions(extent) >= 1, op, ": a window of ", axis.size, " with dilation ", axis.dilation,
              " is longer than ", extent, " elements with padding ", axis.padding, " at either end, x is ", x);
  };
  check(window.h, x[-2]);
  check(window.w, x[-1]);
}

}  // namespace tapestry
