// The menu of differentiable functions. Each states its formula and shapes; errors name the op, the shapes and the fix.
// B batch, T time, C channels, H heads, D head size, V vocabulary. Broadcasting is NumPy's. Which types they take and
// give under an Autocast is the table of autograd/autocast.h.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "core/kernels/attention.h"
#include "core/kernels/cross_entropy.h"
#include "core/kernels/gemm.h"
#include "core/kernels/layernorm.h"
#include "core/kernels/pool.h"
#include "core/kernels/window.h"
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
Var relu(const Var& x);       // max(x, 0); NaN stays NaN, forward and backward; gradient 0 at 0 and below, of any dy
Var silu(const Var& x);       // x sigmoid(x); at infinity, as both forms of gelu, the limit: 0 at -inf
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

// x in another floating type, rounded to nearest even; the gradient is cast back. The same type gives x itself.
Var cast(const Var& x, DType dtype);

// ---- reductions over any set of axes (negative counts from the end; none given means all)
Var sum(const Var& x, Axes axes = {}, bool keepdim = false);   // over nothing: 0
Var mean(const Var& x, Axes axes = {}, bool keepdim = false);  // over nothing: throws
// The largest and the smallest element; NaN if there is one. The gradient goes to the first of equal ones in row-major
// order, and is NaN at the first NaN. Over nothing: throws. Where they are: argmax and argmin in core/order.h.
Var max(const Var& x, Axes axes = {}, bool keepdim = false);
Var min(const Var& x, Axes axes = {}, bool keepdim = false);
Var prod(const Var& x, Axes axes = {}, bool keepdim = false);  // over nothing: 1; no division, so zeros are fine
// sum((x - mean)^2) / (n - correction) over the n elements of each result, in two passes, and its root (the gradient of
// which is 0 where it is 0, a subgradient). correction 1: unbiased, 0: biased. n <= correction throws.
Var var(const Var& x, Axes axes = {}, bool keepdim = false, double correction = 1);
Var stddev(const Var& x, Axes axes = {}, bool keepdim = false, double correction = 1);
// sqrt(sum(x^2)), without overflow on the way; the gradient at 0 is 0, a subgradient. Over nothing: 0. To clip x to a
// norm, also where it is 0: x / maximum(norm(x) / limit, one).
Var norm(const Var& x, Axes axes = {}, bool keepdim = false);
// log(sum(exp(x))). -inf only, or nothing: -inf and gradient 0; with +inf: inf, and the gradient at +inf is NaN.
Var logsumexp(const Var& x, Axes axes = {}, bool keepdim = false);
Var cumsum(const Var& x, int axis);  // y[i] = x[0] + ... + x[i] along one axis

// ---- shape
Var reshape(const Var& x, const Shape& shape);                           // a view
Var reshape(const Var& x, std::initializer_list<std::int64_t> extents);  // the same; one extent may be -1
Var permute(const Var& x, Axes order);                                   // axis i of the result is axis order[i] of x
Var transpose(const Var& x, int axis_a = -2, int axis_b = -1);
// A copy of begin, begin + step, ... up to end, which is left out. A negative step runs backwards, and end may be -1.
Var slice(const Var& x, int axis, std::int64_t begin, std::int64_t end, std::int64_t step = 1);
Var flip(const Var& x, Axes axes);             // each of these axes backwards
Var expand(const Var& x, const Shape& shape);  // broadcast to `shape`, as a copy
// `before` elements of `value` in front of an axis and `after` behind it.
Var pad(const Var& x, int axis, std::int64_t before, std::int64_t after, double value = 0);
Var repeat_interleave(const Var& x, std::int64_t repeats, int axis);  // a, b -> a, a, b, b
Var concat(std::span<const Var> parts, int axis);
inline Var concat(std::initializer_list<Var> parts, int axis) {
  return concat(std::span(parts.begin(), parts.size()), axis);
}
Var stack(std::span<const Var> parts, int axis);  // parts of one shape along a new axis
inline Var stack(std::initializer_list<Var> parts, int axis) {
  return stack(std::span(parts.begin(), parts.size()), axis);
}
std::array<Var, 2> split(const Var& x, int axis, std::int64_t at);  // [0, at) and [at, end)
namespace detail {
// Parts of the given sizes; no sizes means equal ones. `values` is working space.
void split(const char* op, const Var& x, int axis, std::span<const std::int64_t> sizes, std::span<Tensor> values,
           std::span<Var> parts);
template <std::size_t N>
std::array<Var, N> split(const char* op, const Var& x, int axis, std::span<const std::int64_t> sizes) {
  static_assert(N > 0, "split: into one part or more");
  std::array<Tensor, N> values;
  std::array<Var, N> parts;
  split(op, x, axis, sizes, values, parts);
  return parts;
}
}  // namespace detail
// Parts of the given sizes, which add up to the axis: auto [q, k, v] = split(x, -1, {4, 2, 2}).
template <std::size_t N>
std::array<Var, N> split(const Var& x, int axis, const std::int64_t (&sizes)[N]) {
  return detail::split<N>("split", x, axis, sizes);
}
// N equal parts: auto [q, k, v] = chunk<3>(x, -1).
template <std::size_t N>
std::array<Var, N> chunk(const Var& x, int axis) {
  return detail::split<N>("chunk", x, axis, {});
}

// ---- rows and elements chosen by index (i32 or i64). An index outside the axis throws, and nothing is written.
// index of x's rank, of any length along `axis` and no longer than x along the others, as in PyTorch; y of its shape:
// y[.., i, ..] = x[.., index[.., i, ..], ..]
Var gather(const Var& x, int axis, const Tensor& index);
Var index_select(const Var& x, int axis, const Tensor& index);  // index [n]: y[.., i, ..] = x[.., index[i], ..]
// y = x, then y[.., index[.., i, ..], ..] += source[.., i, ..]; index and source of one shape, as in gather. Equal
// indices add up in order of i.
Var scatter_add(const Var& x, int axis, const Tensor& index, const Var& source);
// ids of any shape S -> S + [classes]: 1 where the last index equals the id, else 0.
Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype = DType::f32);
// Over the last two axes: what lies on or below (above) the given diagonal stays, the rest is 0 whatever it was.
// Diagonal 0 is the main one, positive ones lie to its right.
Var tril(const Var& x, std::int64_t diagonal = 0);
Var triu(const Var& x, std::int64_t diagonal = 0);

// ---- products
// [..., M, K] x [..., K, N] -> [..., M, N]; leading axes broadcast; a flag reads that operand transposed.
// A vector counts as a row on the left and as a column on the right, and that axis of 1 is left out of the result, as
// in NumPy: [K] x [K, N] -> [N], [..., M, K] x [K] -> [..., M], [K] x [K] -> scalar. A vector has no flag.
Var matmul(const Var& a, const Var& b, bool transpose_a = false, bool transpose_b = false);
// x [..., in] weight [in, out] + bias [out] + residual [..., out] -> [..., out]; an empty Var means none.
Var linear(const Var& x, const Var& weight, const Var& bias = {}, const Var& residual = {});
// gelu(x weight + bias), the activation applied while the product is still in the cache.
Var linear_gelu(const Var& x, const Var& weight, const Var& bias = {}, GeluForm form = GeluForm::erf);

// ---- windows that slide over the last two axes (conv1d: one). Padding is zeros at both ends of an axis; a window has
// (extent + 2 padding - dilation (size - 1) - 1) / stride + 1 places along it, and none throws. N may be 0.
struct UnfoldOptions {
  HeightWidth stride = 1, padding = 0, dilation = 1;
};
// [N, C, H, W] -> [N, C * h * w, places]: row (c, i, j) is what tap (i, j) of the window sees in channel c, place by
// place in row-major order, as in torch.nn.functional.unfold. The gradient of an element is the sum over all copies.
Var unfold(const Var& x, HeightWidth size, const UnfoldOptions& options = {});

struct Conv1dOptions {
  std::int64_t stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;  // runs of channels, of x and of y, that are convolved apart; divides both
};
struct Conv2dOptions {
  HeightWidth stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
};
// The cross-correlation y[n, o, p] = bias[o] + sum over c, tap of weight[o, c, tap] x[n, c, p stride + tap dilation -
// padding], c within the group of o (LeCun et al. 1998; groups: Krizhevsky et al. 2012). Layouts are PyTorch's:
// x [N, C, L], weight [O, C / groups, size], bias [O] or an empty Var -> [N, O, places].
// Padding is multiplied like any zero: 0 * inf = NaN where an infinite weight lies over it.
Var conv1d(const Var& x, const Var& weight, const Var& bias = {}, const Conv1dOptions& options = {});
// x [N, C, H, W], weight [O, C / groups, h, w], bias [O] or an empty Var -> [N, O, places down, places across].
Var conv2d(const Var& x, const Var& weight, const Var& bias = {}, const Conv2dOptions& options = {});

// ---- pooling: windows over [N, C, L] -> [N, C, L'] and [N, C, H, W] -> [N, C, H', W'], with L' = (L + 2 padding -
// dilation (size - 1) - 1) / stride + 1, rounded down. Options: {.size = 2}, by axis {.size = {3, 2}, .padding = 1}.
// The padding never is the maximum. The first of equal elements gets the gradient; NaN gives NaN, as in max.
Var max_pool1d(const Var& x, const MaxPool1dOptions& options);
Var max_pool2d(const Var& x, const MaxPool2dOptions& options);
// The padding counts as 0. The divisor is the window's size, or with count_include_pad = false its elements of x.
Var avg_pool1d(const Var& x, const AvgPool1dOptions& options);
Var avg_pool2d(const Var& x, const AvgPool2dOptions& options);

// ---- rows: everything here works over the last axis
// exp(x - max) / sum, and its logarithm. mask broadcasts to x: u8 where nonzero keeps, or float that is added, -inf
// hiding. What is hidden has no effect, NaN included. A row with nothing left gives 0 (log: -inf) and gradient 0.
Var softmax(const Var& x, const Var& mask = {});
Var log_softmax(const Var& x, const Var& mask = {});
// (x - mean) / sqrt(biased variance + eps) * weight + bias, statistics in two passes (Ba et al. 2016). weight, bias
// [C]. The other form divides by (unbiased std + eps), as the Annotated Transformer does; its usual eps is 1e-6.
Var layernorm(const Var& x, const Var& weight, const Var& bias, double eps = 1e-5,
              LayerNormForm form = LayerNormForm::variance_plus_eps);

// x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019). weight [C].
Var rmsnorm(const Var& x, const Var& weight, double eps = 1e-5);

// ---- normalisation by channel: x [N, C, ...], weight and bias [C]
// (x - mean) / sqrt(biased variance + eps) * weight + bias for each channel, over all other axes (Ioffe & Szegedy
// 2015). training: statistics of the batch, and running = (1 - momentum) running + momentum batch, in place, with the
// unbiased variance; one value per channel throws, an empty batch changes nothing. Else: the running ones, as
// constants.
Var batchnorm(const Var& x, const Var& weight, const Var& bias, Tensor running_mean, Tensor running_var, bool training,
              double momentum = 0.1, double eps = 1e-5);
// The same within each sample, over `groups` runs of C / groups channels and all trailing axes (Wu & He 2018).
Var groupnorm(const Var& x, const Var& weight, const Var& bias, std::int64_t groups, double eps = 1e-5);

// table [V, C], ids i32 or i64 of any shape S -> S + [C]. Rows of `padding_id` (-1: none) get no gradient.
// An id outside [0, V) throws.
Var embedding(const Var& table, const Tensor& ids, std::int64_t padding_id = -1);

// Inverted dropout: each element is kept with probability 1 - p and then scaled by 1 / (1 - p). p = 1 gives zeros.
// The mask is a function of `key` and is not stored. p outside [0, 1] throws.
Var dropout(const Var& x, double p, RandomKey key);

// ---- recurrent cells: the maps hold the gates side by side, states are [..., H]; see layers/recurrent.h
// Maps [..., 3H] of r, z, n. r, z = sigmoid(from_input + from_state), n = tanh(from_input + r from_state), each with
// its part; h' = (1 - z) n + z h (Cho et al. 2014).
Var gru_gates(const Var& from_input, const Var& from_state, const Var& h);
// Maps [..., 4H] of i, f, g, o. i, f, o = sigmoid(from_input + from_state), g = tanh(from_input + from_state);
// c' = f c + i g, h' = o tanh(c') (Hochreiter & Schmidhuber 1997). -> h', c', o, the last for another h' of c'.
std::array<Var, 3> lstm_gates(const Var& from_input, const Var& from_state, const Var& c);

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
// With label smoothing, class weights (the mean then divides by the sum of the targets' weights) and z-loss, see
// CrossEntropyOptions. A target of weight 0 adds no loss.
CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, const CrossEntropyOptions& options);
inline CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, std::int64_t ignore_index = -100) {
  return cross_entropy(logits, targets, CrossEntropyOptions{.ignore_index = ignore_index});
}
// The same for targets that are distributions q of the logits' shape: mean over rows of sum_c w_c q_c (logsumexp -
// z_c), q smoothed first. The weights are not divided by. Both inputs may be differentiated; every row counts.
CrossEntropy soft_cross_entropy(const Var& logits, const Var& targets, const CrossEntropyOptions& options = {});

// ---- losses of two tensors of one shape: nothing broadcasts. Both may be differentiated. 16 bits give f32.
enum class LossReduction { mean, sum, none };  // none: one value for each element; the mean over nothing throws

Var mse(const Var& x, const Var& target, LossReduction reduction = LossReduction::mean);  // (x - t)^2
Var l1(const Var& x, const Var& target, LossReduction reduction = LossReduction::mean);   // |x - t|; gradient 0 at 0
// d^2 / 2 for |d| = |x - t| <= delta, delta (|d| - delta / 2) beyond (Huber 1964).
Var huber(const Var& x, const Var& target, double delta = 1, LossReduction reduction = LossReduction::mean);
// max(x, 0) - x t + log1p(exp(-|x|)), the binary cross-entropy of sigmoid(x). pos_weight broadcasts to x and multiplies
// the part of the positive class: (1 - t) softplus(x) + pos_weight t softplus(-x).
Var bce_with_logits(const Var& x, const Var& target, const Tensor& pos_weight = {},
                    LossReduction reduction = LossReduction::mean);
// t (log t - x), x being log-probabilities and t probabilities; 0 where t is 0. The mean is over elements: for the
// divergence averaged over a batch take the sum and divide by the number of rows.
Var kl_div(const Var& x, const Var& target, LossReduction reduction = LossReduction::mean);

struct NllOptions {
  std::int64_t ignore_index = -100;
  Tensor class_weights = {};                      // [V]; empty: all 1
  LossReduction reduction = LossReduction::mean;  // divides by the sum of the weights of the targets that count
};
// -w[target] log_probs[target]; log_probs [..., V], targets i32 or i64 [...]. Ignored targets and those of weight 0
// give 0; nothing counted: 0.
Var nll(const Var& log_probs, const Tensor& targets, const NllOptions& options = {});

}  // namespace tapestry
