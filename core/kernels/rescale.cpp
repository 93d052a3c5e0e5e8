// CPU kernel of rescale.h: one pass over memory, nothing is saved.
#include "core/kernels/rescale.h"

#include "core/parallel.h"

namespace tapestry::cpu {

void rescale(Tensor& x, const FlatRange& range, double factor, double limit) {
  constexpr std::int64_t kGrain = 16384;
  TAP_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= x.numel(), "rescale: range [", range.begin,
            ", ", range.end, ") must lie in [0, ", x.numel(), ")");
  visit_float("rescale", x.dtype(), [&]<class T>(TypeTag<T>) {
    T* const data = x.mutable_data<T>() + range.begin;
    const T by = static_cast<T>(factor), high = static_cast<T>(limit), low = -high;
    parallel_for(range.end - range.begin, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T y = by * data[i];
        data[i] = y > high ? high : y < low ? low : y;
      }
    });
  });
}

}  // namespace tapestry::cpu
