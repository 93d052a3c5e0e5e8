// The extremum of a row is found in vectors, then the first element equal to it. A minimum is the maximum of -x.
// Saved: the values and their positions.
#include "core/kernels/extremum.h"

#include <cmath>

#include "core/kernels/slices.h"

namespace tapestry::cpu {

void extremum_forward(const Tensor& x, const Shape& kept, bool largest, Tensor& y, Tensor& position) {
  visit_float("extremum", x.dtype(), [&]<class T>(TypeTag<T>) {
    T* py = y.mutable_data<T>();
    std::int64_t* where = position.mutable_data<std::int64_t>();
    const T sign = largest ? T(1) : T(-1);
    const Slices slices(x.shape(), kept);
    for_each_slice(slices, x.data<T>(), [=, n = slices.length()](std::int64_t result, const T* row) {
      const T value = sign * row_max<T>(n, [=](std::int64_t i, auto count) {
                        return sign * simd::load_partial(row + i, count, sign * kMinusInfinity<T>);
                      });
      const T* found = std::isnan(value) ? std::find_if(row, row + n, [](T v) { return std::isnan(v); })
                                         : std::find(row, row + n, value);
      py[result] = *found;
      where[result] = found - row;
    });
  });
}

void extremum_backward(const Tensor& dy, const Tensor& y, const Tensor& position, const Shape& kept, Grad dx) {
  if (!dx) return;
  visit_float("extremum", y.dtype(), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim();
    T* pdx = dx.data<T>();
    if (!add) std::fill_n(pdx, dx.shape().numel(), T(0));
    const T *pdy = dy.data<T>(), *py = y.data<T>();
    const std::int64_t* where = position.data<std::int64_t>();
    const Slices slices(dx.shape(), kept);
    parallel_rows(slices.count(), 1,
                  [&](std::int64_t i) { pdx[slices.offset(i, where[i])] += std::isnan(py[i]) ? py[i] : pdy[i]; });
  });
}

}  // namespace tapestry::cpu
