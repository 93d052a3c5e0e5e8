// Pointwise functions: one formula each (core/kernels/pointwise_formulas.h), shared by every device and element type.
// A is double, float or a vector of them; functions such as exp come from core/kernels/simd_math.h. f is the function,
// df its derivative. kSaves says from which value df is computed, so only that one is kept for backward.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

enum class Saves { nothing, input, output };

// Every unary op is one entry here, one formula in core/kernels/pointwise_formulas.h and one line in autograd/ops.h.
#define TAP_UNARY_OPS(X) \
  X(neg, Neg)            \
  X(exp, Exp)            \
  X(log, Log)            \
  X(sqrt, Sqrt)          \
  X(square, Square)      \
  X(tanh, Tanh)          \
  X(sigmoid, Sigmoid)    \
  X(relu, Relu)          \
  X(silu, Silu)          \
  X(gelu, Gelu)          \
  X(gelu_tanh, GeluTanh)

// saved is x, y or empty, as formula::Formula::kSaves says.
#define TAP_DECLARE_UNARY(name, Formula)                 \
  TAP_KERNEL(name##_forward, const Tensor& x, Tensor& y) \
  TAP_KERNEL(name##_backward, const Tensor& dy, const Tensor& saved, Grad dx)
TAP_UNARY_OPS(TAP_DECLARE_UNARY)
#undef TAP_DECLARE_UNARY

#define TAP_BINARY_OPS(X) \
  X(add, Add)             \
  X(sub, Sub)             \
  X(mul, Mul)             \
  X(div, Div)

// y has the broadcast shape of a and b. In backward an operand may be an empty handle where neither gradient wanted
// reads it (formula::Formula::kDaReads and kDbReads), so shapes come from the arguments; a gradient is summed over the
// axes that its operand broadcast along.
#define TAP_DECLARE_BINARY(name, Formula)                                                               \
  TAP_KERNEL(name##_forward, const Tensor& a, const Tensor& b, Tensor& y)                               \
  TAP_KERNEL(name##_backward, const Tensor& dy, const Tensor& a, const Tensor& b, const Shape& a_shape, \
             const Shape& b_shape, Grad da, Grad db)
TAP_BINARY_OPS(TAP_DECLARE_BINARY)
#undef TAP_DECLARE_BINARY

TAP_KERNEL(affine_forward, const Tensor& x, double factor, double offset, Tensor& y)  // factor * x + offset
TAP_KERNEL(affine_backward, const Tensor& dy, double factor, Grad dx)

}  // namespace tapestry
