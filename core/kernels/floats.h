// Arrays of f32, f16 or bf16 whose type is known at run time, read and written in vectors of float.
#pragma once

#include <cstddef>

#include "core/kernels/convert.h"

namespace tapestry {

// Empty where data is null.
template <class Byte>
struct FloatsOf {
  Byte* data = nullptr;
  DType dtype = DType::f32;

  explicit operator bool() const { return data != nullptr; }
  FloatsOf& operator+=(std::int64_t count) {
    data += count * (dtype == DType::f32 ? 4 : 2);
    return *this;
  }
  FloatsOf operator+(std::int64_t count) const { return FloatsOf(*this) += count; }
  operator FloatsOf<const std::byte>() const { return {data, dtype}; }
};
using Floats = FloatsOf<std::byte>;
using ConstFloats = FloatsOf<const std::byte>;

// Calls f(p) with p a pointer to the elements: of float, Half or BFloat16.
template <class F>
inline decltype(auto) visit_floats(ConstFloats x, F&& f) {
  if (x.dtype == DType::f32) return f(reinterpret_cast<const float*>(x.data));
  if (x.dtype == DType::bf16) return f(reinterpret_cast<const BFloat16*>(x.data));
  return f(reinterpret_cast<const Half*>(x.data));
}

namespace simd {

// The first `count` lanes, the others 0.
inline Vec<float> load_floats(ConstFloats x, std::int64_t count) {
  if (x.dtype == DType::f32) return load_partial(reinterpret_cast<const float*>(x.data), count);
  if (x.dtype == DType::bf16) return load_wide_partial(reinterpret_cast<const BFloat16*>(x.data), count);
  return load_wide_partial(reinterpret_cast<const Half*>(x.data), count);
}
// Rounds to nearest even.
inline void store_floats(Floats x, Vec<float> v, std::int64_t count) {
  if (x.dtype == DType::f32) return store_partial(reinterpret_cast<float*>(x.data), v, count);
  if (x.dtype == DType::bf16) return store_narrow_partial(reinterpret_cast<BFloat16*>(x.data), v, count);
  store_narrow_partial(reinterpret_cast<Half*>(x.data), v, count);
}
// What store_floats and load_floats make of v.
inline Vec<float> rounded_to(DType dtype, Vec<float> v) {
  if (dtype == DType::bf16) return detail::widen_bits(detail::narrow_bits(v, BFloat16()), BFloat16());
  if (dtype == DType::f16) return detail::widen_bits(detail::narrow_bits(v, Half()), Half());
  return v;
}

}  // namespace simd
}  // namespace tapestry
