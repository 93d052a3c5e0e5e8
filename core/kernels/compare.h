// Comparisons, element by element with broadcasting: u8 tensors of ones and zeros, which where() and masked_fill()
// take. They have no gradient. As IEEE has it, a comparison with NaN is false, except that ne is true.
#pragma once

#include <concepts>

#include "core/kernels/kernel.h"

namespace tapestry {

enum class Comparison { equal, not_equal, less, less_equal };

// y [broadcast shape of a and b], u8, is 1 where a and b, of one dtype (not f16 or bf16), compare so, else 0.
TAP_KERNEL(compare_forward, Comparison comparison, const Tensor& a, const Tensor& b, Tensor& y)

// The same with a result of its own. Throws for operands of different dtypes.
Tensor compare(Comparison comparison, const Tensor& a, const Tensor& b);
// `value` as a tensor of x's dtype and device. Throws if the dtype is an integer one that cannot hold it.
Tensor operand_like(const Tensor& x, double value);

// What a comparison takes: a Tensor, or what has one as its value().
template <class T>
concept HoldsTensor = std::same_as<T, Tensor> || requires(const T& t) {
  { t.value() } -> std::same_as<const Tensor&>;
};
template <HoldsTensor T>
const Tensor& tensor_of(const T& t) {
  if constexpr (std::same_as<T, Tensor>)
    return t;
  else
    return t.value();
}

// eq(a, b), eq(a, 0.5) and so on; the number on the right is rounded to a's dtype first.
#define TAP_COMPARISON(name, comparison, first, second)                          \
  template <HoldsTensor A, HoldsTensor B>                                        \
  Tensor name(const A& a, const B& b) {                                          \
    return compare(Comparison::comparison, tensor_of(first), tensor_of(second)); \
  }                                                                              \
  template <HoldsTensor A>                                                       \
  Tensor name(const A& a, double value) {                                        \
    return name(tensor_of(a), operand_like(tensor_of(a), value));                \
  }
TAP_COMPARISON(eq, equal, a, b)
TAP_COMPARISON(ne, not_equal, a, b)
TAP_COMPARISON(lt, less, a, b)
TAP_COMPARISON(le, less_equal, a, b)
TAP_COMPARISON(gt, less, b, a)
TAP_COMPARISON(ge, less_equal, b, a)
#undef TAP_COMPARISON

}  // namespace tapestry
