// Unfolding copies runs of a plane: along one row of places, a tap sees elements `stride` apart, and the places where
// it sees padding lie at the two ends. Folding walks the same runs and adds. Nothing is saved but the geometry.
#include "core/kernels/unfold.h"

#include <algorithm>

#include "core/kernels/rows.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

struct Places {
  std::int64_t begin, end;
};

// The places at which a tap sees an element rather than padding; begin == end where there is none.
Places places_inside(const WindowAxis& axis, std::int64_t extent, std::int64_t tap) {
  const std::int64_t before = -axis.element(0, tap);  // elements of padding in front of the first place
  const std::int64_t last = extent - 1 + before;
  const std::int64_t end = last < 0 ? 0 : std::min(last / axis.stride + 1, axis.positions(extent));
  const std::int64_t begin = before <= 0 ? 0 : (before + axis.stride - 1) / axis.stride;
  return {std::min(begin, end), end};
}

// What one tap sees at `count` places of a row, beginning with `place`; `from` is a row of the plane.
template <class T>
void copy_run(const WindowAxis& axis, std::int64_t tap, Places inside, const T* from, std::int64_t place,
              std::int64_t count, T* to) {
  const std::int64_t begin = std::clamp(inside.begin, place, place + count) - place;
  const std::int64_t end = std::clamp(inside.end, place + begin, place + count) - place;
  std::fill_n(to, begin, T(0));
  if (begin < end) {
    from += axis.element(place + begin, tap);
    if (axis.stride == 1) {
      std::copy_n(from, end - begin, to + begin);
    } else {
      for (std::int64_t i = begin; i < end; ++i, from += axis.stride) to[i] = *from;
    }
  }
  std::fill(to + end, to + count, T(0));
}

}  // namespace

template <class T>
void unfold_rows(const Unfolding& u, const T* planes, std::int64_t row, std::int64_t rows, std::int64_t place,
                 std::int64_t count, T* columns) {
  const WindowAxis &h = u.window.h, &w = u.window.w;
  for (std::int64_t r = row; r < row + rows; ++r) {
    const T* plane = planes + r / u.taps() * u.plane();
    const std::int64_t tap_h = r % u.taps() / w.size, tap_w = r % w.size;
    const Places inside = places_inside(w, u.width, tap_w);
    std::int64_t at_h = place / u.across, at_w = place % u.across;
    for (std::int64_t left = count; left > 0; ++at_h, at_w = 0) {
      const std::int64_t run = std::min(left, u.across - at_w);
      const std::int64_t y = h.element(at_h, tap_h);
      if (y < 0 || y >= u.height)
        std::fill_n(columns, run, T(0));
      else
        copy_run(w, tap_w, inside, plane + y * u.width, at_w, run, columns);
      columns += run;
      left -= run;
    }
  }
}

template <class T>
void fold_channels(const Unfolding& u, const T* columns, std::int64_t channels, bool add, T* planes) {
  const WindowAxis &h = u.window.h, &w = u.window.w;
  if (!add) std::fill_n(planes, channels * u.plane(), T(0));
  for (std::int64_t c = 0; c < channels; ++c, planes += u.plane()) {
    for (std::int64_t tap_h = 0; tap_h < h.size; ++tap_h) {
      const Places inside_h = places_inside(h, u.height, tap_h);
      for (std::int64_t tap_w = 0; tap_w < w.size; ++tap_w, columns += u.places()) {
        const Places inside_w = places_inside(w, u.width, tap_w);
        const std::int64_t count = inside_w.end - inside_w.begin;
        if (count == 0) continue;
        for (std::int64_t at_h = inside_h.begin; at_h < inside_h.end; ++at_h) {
          const T* from = columns + at_h * u.across + inside_w.begin;
          T* to = planes + h.element(at_h, tap_h) * u.width + w.element(inside_w.begin, tap_w);
          if (w.stride == 1) {
            for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
          } else {
            for (std::int64_t i = 0; i < count; ++i) to[i * w.stride] += from[i];
          }
        }
      }
    }
  }
}

template void unfold_rows(const Unfolding&, const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                          float*);
template void unfold_rows(const Unfolding&, const double*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                          double*);
template void fold_channels(const Unfolding&, const float*, std::int64_t, bool, float*);
template void fold_channels(const Unfolding&, const double*, std::int64_t, bool, double*);

void unfold_forward(const Tensor& x, const Unfolding& u, Tensor& y) {
  visit_float("unfold", y.dtype(), [&]<class T>(TypeTag<T>) {
    const T* from = x.data<T>();
    T* to = y.mutable_data<T>();
    const std::int64_t rows = x.shape()[0] * x.shape()[1] * u.taps(), places = u.places();
    parallel_for(rows, grain_for(places), [&](std::int64_t begin, std::int64_t end) {
      unfold_rows(u, from, begin, end - begin, 0, places, to + begin * places);
    });
  });
}

void unfold_backward(const Tensor& dy, const Unfolding& u, Grad dx) {
  if (!dx) return;
  const bool add = dx.claim();
  visit_float("unfold", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    const std::int64_t matrix = u.taps() * u.places();
    parallel_for(dx.shape()[0] * dx.shape()[1], grain_for(matrix), [&](std::int64_t begin, std::int64_t end) {
      fold_channels(u, from + begin * matrix, end - begin, add, to + begin * u.plane());
    });
  });
}

}  // namespace tapestry::cpu
