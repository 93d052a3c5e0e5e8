// What the ops with a float mask check.
#pragma once

#include "core/tensor.h"

namespace tapestry::detail {

// Both 0 and 1 and nothing else: a float mask like this is a keep mask with the wrong type.
template <class T>
bool holds_only_0_and_1(const T* p, std::int64_t n) {
  bool zero = false, one = false;
  for (std::int64_t i = 0; i < n; ++i) {
    if (p[i] != T(0) && p[i] != T(1)) return false;
    (p[i] == T(0) ? zero : one) = true;
  }
  return zero && one;
}
inline bool looks_like_keep_mask(const Tensor& given) {
  if (given.device() != Device::cpu) return false;
  const Tensor mask = given.to(accumulate_dtype(given.dtype()));
  return mask.dtype() == DType::f64 ? holds_only_0_and_1(mask.data<double>(), mask.numel())
                                    : holds_only_0_and_1(mask.data<float>(), mask.numel());
}

}  // namespace tapestry::detail
