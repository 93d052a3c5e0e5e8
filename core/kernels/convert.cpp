// The loops over arrays, compiled once for each 16-bit type.
#include "core/kernels/convert.h"

namespace tapestry::cpu {
namespace {

template <class F>
void visit_16bit(DType dtype, F&& f) {
  TAP_CHECK(is_16bit(dtype), "convert: the type must be f16 or bf16, not ", dtype);
  if (dtype == DType::f16)
    f(TypeTag<Half>{});
  else
    f(TypeTag<BFloat16>{});
}

constexpr std::int64_t kStep = simd::kLanes<float>;

}  // namespace

void widen(DType dtype, const void* from, float* to, std::int64_t n) {
  visit_16bit(dtype, [=]<class H>(TypeTag<H>) {
    const H* p = static_cast<const H*>(from);
    std::int64_t i = 0;
    for (; i + kStep <= n; i += kStep) simd::store(to + i, simd::load_wide(p + i));
    if (i < n) simd::store_partial(to + i, simd::load_wide_partial(p + i, n - i), n - i);
  });
}

void narrow(DType dtype, const float* from, void* to, std::int64_t n) {
  visit_16bit(dtype, [=]<class H>(TypeTag<H>) {
    H* p = static_cast<H*>(to);
    std::int64_t i = 0;
    for (; i + kStep <= n; i += kStep) simd::store_narrow(p + i, simd::load(from + i));
    if (i < n) simd::store_narrow_partial(p + i, simd::load_partial(from + i, n - i), n - i);
  });
}

}  // namespace tapestry::cpu
