// Element types, the two 16-bit float formats, and dispatch from a run-time DType to a C++ type.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>

#include "core/error.h"

namespace tapestry {

enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, u8 };

std::int64_t size_of(DType dtype);        // bytes per element
std::string_view name_of(DType dtype);    // "f32"
DType dtype_from_name(std::string_view);  // throws for an unknown name
inline std::string to_text(DType dtype) { return std::string(name_of(dtype)); }

constexpr bool is_floating(DType dtype) { return dtype <= DType::bf16; }
constexpr bool is_16bit(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
// The type that holds sums of both without loss of range: the wider one, and f32 for f16 with bf16.
constexpr DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_16bit(a) && is_16bit(b)) return DType::f32;
  return a == DType::f64 || b == DType::f64 ? DType::f64 : DType::f32;
}
// The type in which statistics and sums over elements of `dtype` are kept: f64 for f64, else f32.
constexpr DType accumulate_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// IEEE binary16 and bfloat16 bits. Conversions round to nearest even, keep subnormals, and keep NaN a NaN.
std::uint16_t f32_to_f16_bits(float value);
float f16_bits_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16_bits(float value);
inline float bf16_bits_to_f32(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  explicit Half(float value) : bits(f32_to_f16_bits(value)) {}
  explicit operator float() const { return f16_bits_to_f32(bits); }
};
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) : bits(f32_to_bf16_bits(value)) {}
  explicit operator float() const { return bf16_bits_to_f32(bits); }
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

template <class T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>{}) with the C++ type of `dtype`; `op` names the caller in the error.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(TypeTag<double>{});
    case DType::f32:
      return f(TypeTag<float>{});
    case DType::f16:
      return f(TypeTag<Half>{});
    case DType::bf16:
      return f(TypeTag<BFloat16>{});
    case DType::i64:
      return f(TypeTag<std::int64_t>{});
    case DType::i32:
      return f(TypeTag<std::int32_t>{});
    case DType::u8:
      return f(TypeTag<std::uint8_t>{});
  }
  fail("visit_dtype: not a dtype");
}

// The same for kernels, which exist for double and float only.
template <class F>
decltype(auto) visit_float(std::string_view op, DType dtype, F&& f) {
  if (dtype == DType::f32) return f(TypeTag<float>{});
  if (dtype == DType::f64) return f(TypeTag<double>{});
  fail(op, ": the CPU kernel takes f32 or f64, not ", dtype,
       is_16bit(dtype) ? "; call it by TAP_DISPATCH, which converts, or cast() what it reads to f32" : "");
}

}  // namespace tapestry
