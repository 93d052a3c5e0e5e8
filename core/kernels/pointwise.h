// Pointwise functions: one formula each (core/kernels/pointwise_formulas.h, for two inputs
// core/kernels/pointwise_binary_formulas.h), shared by every device and element type.
// A is double, float or a vector of them; functions such as exp come from core/kernels/simd_math.h. f is the function,
// df its derivative. kSaves says from which value df is computed, so only that one is kept for backward. A formula with
// numbers of its own (a slope, bounds) holds them as members and is handed to the kernels as a value.
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
  X(gelu_tanh, GeluTanh) \
  X(abs, Abs)            \
  X(sign, Sign)          \
  X(expm1, Expm1)        \
  X(log1p, Log1p)        \
  X(rsqrt, Rsqrt)        \
  X(sin, Sin)            \
  X(cos, Cos)            \
  X(erf, Erf)

// The same for formulas that hold numbers; the function itself is written out in autograd/ops/pointwise.cpp.
#define TAP_UNARY_OPS_WITH_NUMBERS(X) \
  X(affine, Affine)                   \
  X(reciprocal, Reciprocal)           \
  X(power, Power)                     \
  X(clamp, Clamp)                     \
  X(leaky_relu, LeakyRelu)            \
  X(elu, Elu)                         \
  X(softplus, Softplus)

// saved is x, y or empty, as formula::Formula::kSaves says.
#define TAP_DECLARE_UNARY(name, Formula)                       \
  TAP_KERNEL_16BIT(name##_forward, const Tensor& x, Tensor& y) \
  TAP_KERNEL_16BIT(name##_backward, const Tensor& dy, const Tensor& saved, Grad dx)
TAP_UNARY_OPS(TAP_DECLARE_UNARY)
#undef TAP_DECLARE_UNARY

#define TAP_DECLARE_UNARY(name, Formula)                                                  \
  namespace formula {                                                                     \
  struct Formula;                                                                         \
  }                                                                                       \
  TAP_KERNEL_16BIT(name##_forward, const formula::Formula& f, const Tensor& x, Tensor& y) \
  TAP_KERNEL_16BIT(name##_backward, const formula::Formula& f, const Tensor& dy, const Tensor& saved, Grad dx)
TAP_UNARY_OPS_WITH_NUMBERS(TAP_DECLARE_UNARY)
#undef TAP_DECLARE_UNARY

#define TAP_BINARY_OPS(X) \
  X(add, Add)             \
  X(sub, Sub)             \
  X(mul, Mul)             \
  X(div, Div)             \
  X(pow, Pow)             \
  X(minimum, Minimum)     \
  X(maximum, Maximum)

// y has the broadcast shape of a and b. In backward an operand may be an empty handle where neither gradient wanted
// reads it (formula::Formula::kDaReads and kDbReads), so shapes come from the arguments; a gradient is summed over the
// axes that its operand broadcast along.
#define TAP_DECLARE_BINARY(name, Formula)                                                                     \
  TAP_KERNEL_16BIT(name##_forward, const Tensor& a, const Tensor& b, Tensor& y)                               \
  TAP_KERNEL_16BIT(name##_backward, const Tensor& dy, const Tensor& a, const Tensor& b, const Shape& a_shape, \
                   const Shape& b_shape, Grad da, Grad db)
TAP_BINARY_OPS(TAP_DECLARE_BINARY)
#undef TAP_DECLARE_BINARY

// y = mask ? a : b, all three broadcast to y's shape. mask is u8; any value but 0 selects a. In backward a gradient is
// dy where its operand was selected and exactly 0 elsewhere, summed over the axes that the operand broadcast along.
TAP_KERNEL_16BIT(where_forward, const Tensor& mask, const Tensor& a, const Tensor& b, Tensor& y)
TAP_KERNEL_16BIT(where_backward, const Tensor& dy, const Tensor& mask, Grad da, Grad db)

}  // namespace tapestry
