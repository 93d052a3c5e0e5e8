// The menu of differentiable functions. Each states its formula and shapes; errors name the op, the shapes and the fix.
// B batch, T time, C channels, H heads, D head size, V vocabulary. Broadcasting is NumPy's.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "core/kernels/attention.h"
#include "core/random.h"

namespace tapestry {

// ---- pointwise, two inputs, broadcast; the gradient of a broadcast input is summed back to its shape
Var add(const Var& a, const Var& b);
Var sub(const Var& a, const Var& b);
Var mul(const Var& a, const Var& b);
Var div(const Var& a, const Var& b);
// a^b as IEEE has it: NaN for a < 0 unless b is whole. Gradients are limits: a^0 gives a the gradient 0, 0^b with b >=
// 0 gives b the gradient 0; for a < 0 that of b is NaN.
Var pow(const Var& a, const Var& b);
Var pow(const Var& x, double exponent);      // x^0 is 1 with gradient 0 everywhere; at 0, x^1 has gradient 1, x^0.5 inf
Var minimum(const Var& a, const Var& b);     // NaN if either is NaN, both gradients too; a tie gives half to each
Var maximum(const Var& a, const Var& b);     // likewise
Var scale(const Var& x, double factor);      // factor * x
Var add_scalar(const Var& x, double value);  // x + value
Var affine(const Var& x, double factor, double offset);  // factor * x + offset
Var reciprocal(const Var& x, double numerator = 1);      // numerator / x; at 0 infinite, as is the gradient
inline Var operator+(const Var& a, const Var& b) { return add(a, b); }
inline Var operator-(const Var& a, const Var& b) { return sub(a, b); }
inline Var operator*(const Var& a, const Var& b) { return mul(a, b); }
inline Var operator/(const Var& a, const Var& b) { return div(a, b); }
inline Var operator*(double factor, const Var& x) { return scale(x, factor); }
inline Var operator*(const Var& x, double factor) { return scale(x, factor); }
inline Var operator/(const Var& x, double divisor) { return scale(x, 1 / divisor); }
inline Var operator+(const Var& x, double value) { return add_scalar(x, value); }
inline Var operator-(const Var& x, double value) { return add_scalar(x, -value); }
inline Var operator+(double value, const Var& x) { return add_scalar(x, value); }
inline Var operator-(double value, const Var& x) { return affine(x, -1, value); }
inline Var operator/(double numerator, const Var& x) { return reciprocal(x, numerator); }

// ---- choices by a u8 mask (see core/kernels/compare.h), broadcast
// mask ? a : b. The operand that is not selected has no effect, NaN and infinities included, and its gradient is
// exactly 0. That gradient then goes through the function that made the operand: where(x > 0, sqrt(x), x) gives 0 * NaN
// = NaN at x = -1, so make the argument safe first: where(mask, sqrt(where(mask, x, one)), x).
Var where(const Tensor& mask, const Var& a, const Var& b);
Var masked_fill(const Var& x, const Tensor& mask, double value);  // value where mask is not 0; gradient 0 there

// ---- pointwise, one input
Var neg(const Var& x);
Var exp(const Var& x);
Var log(const Var& x);   // -inf at 0, NaN below; gradient inf at 0
Var sqrt(const Var& x);  // gradient at 0 is inf, as the limit says; NaN below 0
Var square(const Var& x);
Var tanh(const Var& x);
Var sigmoid(const Var& x);    // 1 / (1 + exp(-x))
Var relu(const Var& x);       // max(x, 0); NaN stays NaN, forward and backward; gradient 0 at 0
Var silu(const Var& x);       // x sigmoid(x)
Var gelu(const Var& x);       // x Phi(x), the erf form (Hendrycks & Gimpel 2016)
Var gelu_tanh(const Var& x);  // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the tanh form of GPT-2
Var abs(const Var& x);        // gradient 0 at 0
Var sign(const Var& x);       // -1, 0, 1 or NaN; the gradient is 0
Var expm1(const Var& x);      // exp(x) - 1, exact to the last digits near 0
Var log1p(const Var& x);      // log(1 + x), likewise; -inf at -1 with gradient inf, NaN below
Var rsqrt(const Var& x);      // 1 / sqrt(x); inf at 0 with gradient -inf, NaN below
Var sin(const Var& x);        // x in radians; NaN at infinity
Var cos(const Var& x);        // likewise
Var erf(const Var& x);        // 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x
Var clamp(const Var& x, double low, double high);   // NaN stays NaN; gradient 1 in [low, high], 0 outside
Var leaky_relu(const Var& x, double slope = 0.01);  // x, or slope x below 0; gradient `slope` at 0
Var elu(const Var& x, double alpha = 1);            // x, or alpha (exp(x) - 1) below 0; gradient alpha at 0
Var softplus(const Var& x, double beta = 1);        // log(1 + exp(beta x)) / beta, for every x; beta > 0
inline Var operator-(const Var& x) { return neg(x); }

// ---- reductions over any set of axes (negative counts from the end; none given means all)
Var sum(const Var& x, Axes axes = {}, bool keepdim = false);   // over nothing: 0
Var mean(const Var& x, Axes axes = {}, bool keepdim = false);  // over nothing: throws

// ---- shape
Var reshape(const Var& x, const Shape& shape);                           // a view
Var reshape(const Var& x, std::initializer_list<std::int64_t> extents);  // the same; one extent may be -1
Var permute(const Var& x, Axes order);                                   // axis i of the result is axis order[i] of x
Var transpose(const Var& x, int axis_a = -2, int axis_b = -1);
Var slice(const Var& x, int axis, std::int64_t begin, std::int64_t end);  // a copy of [begin, end)
Var concat(std::span<const Var> parts, int axis);
inline Var concat(std::initializer_list<Var> parts, int axis) {
  return concat(std::span(parts.begin(), parts.size()), axis);
}
std::array<Var, 2> split(const Var& x, int axis, std::int64_t at);  // [0, at) and [at, end)

// ---- products
// [..., M, K] x [..., K, N] -> [..., M, N]; leading axes broadcast; a flag reads that operand transposed.
// Both operands need rank 2 or more.
Var matmul(const Var& a, const Var& b, bool transpose_a = false, bool transpose_b = false);
// x [..., in] weight [in, out] + bias [out] -> [..., out]; an empty bias Var means none.
Var linear(const Var& x, const Var& weight, const Var& bias = {});

// ---- rows: everything here works over the last axis
Var softmax(const Var& x);  // exp(x - max) / sum; a row of -inf only gives 0 and gradient 0
Var log_softmax(const Var& x);
// (x - mean) / sqrt(biased variance + eps) * weight + bias, statistics in two passes (Ba et al. 2016). weight, bias
// [C].
Var layernorm(const Var& x, const Var& weight, const Var& bias, double eps = 1e-5);

// table [V, C], ids i32 or i64 of any shape S -> S + [C]. Rows of `padding_id` (-1: none) get no gradient.
// An id outside [0, V) throws.
Var embedding(const Var& table, const Tensor& ids, std::int64_t padding_id = -1);

// Inverted dropout: each element is kept with probability 1 - p and then scaled by 1 / (1 - p). p = 1 gives zeros.
// The mask is a function of `key` and is not stored. p outside [0, 1] throws.
Var dropout(const Var& x, double p, RandomKey key);

// Scaled dot-product attention (Vaswani et al. 2017), computed in tiles that never hold the [Tq, Tk] matrix
// (Dao et al. 2022). q [B, Tq, Hq, D], k and v [B, Tk, Hkv, D] -> [B, Tq, Hq, D]; Hkv divides Hq.
// A row without a visible key gives 0 and gradient 0. See AttentionOptions for scale, causal, masks and dropout.
Var attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& options = {}, const Var& mask = {});
// The same on q, k, v packed as [B, T, 3C] with C = heads * D -> [B, T, C], read and written in place.
Var attention_packed(const Var& qkv, std::int64_t heads, const AttentionOptions& options = {}, const Var& mask = {});

// Mean over the targets that are not `ignore_index` of logsumexp(logits) - logits[target].
// logits [..., V], targets i32 or i64 of shape [...]. All ignored: loss 0 and gradient 0.
struct CrossEntropy {
  Var loss;                   // scalar, f32 (f64 for f64 logits)
  std::int64_t valid_tokens;  // targets that counted
};
CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, std::int64_t ignore_index = -100);

}  // namespace tapestry
