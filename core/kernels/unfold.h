// The elements under a sliding window, laid out as a matrix: x [N, C, H, W] -> y [N, C * kh * kw, places], whose row
// (c, i, j) holds what tap (i, j) sees in channel c, place by place in row-major order; 0 where that is padding.
// Backward adds each element of dy to the element of dx it was copied from.
#pragma once

#include "core/kernels/kernel.h"
#include "core/kernels/window.h"

namespace tapestry {

// A window over planes of height x width elements.
struct Unfolding {
  Unfolding(const Window& sliding, std::int64_t h, std::int64_t w)
      : window(sliding), height(h), width(w), down(sliding.h.positions(h)), across(sliding.w.positions(w)) {}

  std::int64_t plane() const { return height * width; }
  std::int64_t taps() const { return window.h.size * window.w.size; }
  std::int64_t places() const { return down * across; }

  Window window;
  std::int64_t height, width;  // of a plane
  std::int64_t down, across;   // places of the window along either axis
};

TAP_KERNEL(unfold_forward, const Tensor& x, const Unfolding& u, Tensor& y)
TAP_KERNEL(unfold_backward, const Tensor& dy, const Unfolding& u, Grad dx)

namespace cpu {
// The same on raw memory, in the calling thread; convolution stands on it. Instantiated for float and double.
// Rows [row, row + rows) of the matrix of all channels, places [place, place + count): columns is [rows, count].
template <class T>
void unfold_rows(const Unfolding& u, const T* planes, std::int64_t row, std::int64_t rows, std::int64_t place,
                 std::int64_t count, T* columns);
// Adds the matrix [channels * taps, places] back to the planes, or overwrites them. Every element of a plane gets its
// terms in ascending order of taps.
template <class T>
void fold_channels(const Unfolding& u, const T* columns, std::int64_t channels, bool add, T* planes);
}  // namespace cpu

}  // namespace tapestry
