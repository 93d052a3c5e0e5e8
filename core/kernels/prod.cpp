// Products run in double, so that one of floats that fits does not overflow on the way. The gradient of an element is
// the product of those before it times the product of those after it. Saved: x.
#include "core/kernels/prod.h"

#include <vector>

#include "core/kernels/slices.h"

namespace tapestry::cpu {

void prod_forward(const Tensor& x, const Shape& kept, Tensor& y) {
  visit_float("prod", x.dtype(), [&]<class T>(TypeTag<T>) {
    T* py = y.mutable_data<T>();
    const Slices slices(x.shape(), kept);
    for_each_slice(slices, x.data<T>(), [=, n = slices.length()](std::int64_t result, const T* row) {
      double product = 1;
      for (std::int64_t i = 0; i < n; ++i) product *= row[i];
      py[result] = static_cast<T>(product);
    });
  });
}

void prod_backward(const Tensor& dy, const Tensor& x, const Shape& kept, Grad dx) {
  if (!dx) return;
  visit_float("prod", x.dtype(), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim();
    const T* pdy = dy.data<T>();
    const Slices slices(x.shape(), kept);
    map_slices(slices, x.data<T>(), dx.data<T>(), add, [=, n = slices.length()](std::int64_t result, T* row) {
      thread_local std::vector<double> before;
      if (before.size() < static_cast<std::size_t>(n)) before.resize(static_cast<std::size_t>(n));
      double* others = before.data();
      double product = 1;
      for (std::int64_t i = 0; i < n; ++i) {
        others[i] = product;
        product *= row[i];
      }
      double after = pdy[result];
      for (std::int64_t i = n - 1; i >= 0; --i) {
        const T value = row[i];
        row[i] = static_cast<T>(others[i] * after);
        after *= value;
      }
    });
  });
}

}  // namespace tapestry::cpu
