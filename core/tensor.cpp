#include "core/tensor.h"

#include <algorithm>
#include <cstring>

#include "core/kernels/convert.h"
#include "core/parallel.h"

namespace tapestry {

namespace {

constexpr std::int64_t kGrain = 32768;  // elements per thread below which a loop stays serial

// Any element to double and back, for fills, conversions and printing.
template <class T>
double widen(T x) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(x);
  else
    return static_cast<double>(static_cast<float>(x));
}

template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_arithmetic_v<To> && std::is_arithmetic_v<From>)
    return static_cast<To>(x);
  else if constexpr (std::is_arithmetic_v<From>)
    return To(static_cast<float>(x));
  else
    return convert<To>(static_cast<float>(x));
}

void convert_elements(const Tensor& source, Tensor& target) {
  const DType from_type = source.dtype(), to_type = target.dtype();
  if (is_16bit(from_type) && to_type == DType::f32) {
    const std::byte* from = source.raw_data();
    float* to = target.mutable_data<float>();
    return parallel_for(source.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
      cpu::widen(from_type, from + 2 * begin, to + begin, end - begin);
    });
  }
  if (from_type == DType::f32 && is_16bit(to_type)) {
    const float* from = source.data<float>();
    std::byte* to = target.mutable_raw_data();
    return parallel_for(source.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
      cpu::narrow(to_type, from + begin, to + 2 * begin, end - begin);
    });
  }
  visit_dtype(source.dtype(), [&]<class F>(TypeTag<F>) {
    visit_dtype(target.dtype(), [&]<class T>(TypeTag<T>) {
      const F* from = source.data<F>();
      T* to = target.mutable_data<T>();
      parallel_for(source.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) to[i] = convert<T>(from[i]);
      });
    });
  });
}

}  // namespace

Tensor Tensor::reshape(const Shape& shape) const {
  TAP_CHECK(shape.numel() == numel(), "reshape: ", shape_, " has ", numel(), " elements, ", shape, " has ",
            shape.numel());
  return Tensor(storage_, byte_offset_, shape, dtype_);
}

Tensor Tensor::rows(std::int64_t first, std::int64_t count) const {
  TAP_CHECK(shape_.rank() > 0, "rows: a scalar has no rows");
  TAP_CHECK(first >= 0 && count >= 0 && first <= shape_[0] - count, "rows: [", first, ", ", first + count,
            ") is outside of the leading axis of ", shape_);
  const std::int64_t row_bytes = shape_[0] ? bytes() / shape_[0] : 0;
  return Tensor(storage_, byte_offset_ + first * row_bytes, shape_.with(0, count), dtype_);
}

Tensor Tensor::clone() const {
  Tensor copy = empty(shape_, dtype_, device());
  copy.copy_from(*this);
  return copy;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  Tensor result = empty(shape_, dtype, device());
  convert_elements(*this, result);
  return result;
}

Tensor Tensor::to(Device target) const {
  if (target == device()) return *this;
  fail("to: this build has no GPU backend");
}

double Tensor::at(std::int64_t flat) const {
  TAP_CHECK(flat >= 0 && flat < numel(), "at: index ", flat, " is outside of a tensor of shape ", shape_);
  return visit_dtype(dtype_, [&]<class T>(TypeTag<T>) { return widen(data<T>()[flat]); });
}

double Tensor::item() const {
  TAP_CHECK(numel() == 1, "item: needs one element, the shape is ", shape_);
  return at(0);
}

void Tensor::fill(double value) {
  visit_dtype(dtype_, [&]<class T>(TypeTag<T>) {
    T* p = mutable_data<T>();
    const T x = tapestry::convert<T>(value);
    parallel_for(numel(), kGrain, [=](std::int64_t begin, std::int64_t end) { std::fill(p + begin, p + end, x); });
  });
}

void Tensor::copy_from(const Tensor& source) {
  TAP_CHECK(source.shape() == shape_, "copy_from: the source is ", source.shape(), ", the target ", shape_);
  if (source.dtype() != dtype_) return convert_elements(source, *this);
  const std::byte* from = source.raw_data();
  std::byte* to = mutable_raw_data();
  parallel_for(bytes(), kGrain * 4, [=](std::int64_t begin, std::int64_t end) {
    std::memmove(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

Tensor empty(const Shape& shape, DType dtype, Device device) {
  std::int64_t bytes = 0;
  TAP_CHECK(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes), "empty: ", shape, " ", dtype,
            " has more bytes than 64 bits can count");
  return Tensor(Storage(bytes, device), 0, shape, dtype);
}

Tensor zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0, dtype, device); }

Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  t.fill(value);
  return t;
}

Tensor tensor(std::initializer_list<double> values, const Shape& shape, DType dtype) {
  return from_span(std::span<const double>(values.begin(), values.size()), shape).to(dtype);
}
Tensor tensor(std::initializer_list<double> values) {
  return tensor(values, {static_cast<std::int64_t>(values.size())});
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw_data(), b.raw_data(), static_cast<std::size_t>(a.bytes())) == 0;
}

std::string to_text(const Tensor& t) {
  if (!t) return "(empty tensor)";
  std::string text = text_of(t.shape(), " ", t.dtype(), ":");
  constexpr std::int64_t kShown = 8;
  for (std::int64_t i = 0; i < std::min(t.numel(), kShown); ++i) text += text_of(i ? ", " : " ", t.at(i));
  return t.numel() > kShown ? text + ", ..." : text;
}

}  // namespace tapestry
