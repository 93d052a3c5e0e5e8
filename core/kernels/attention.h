// Attention over strided views: out = softmax(scale q k^T + mask) v for every batch and head, in tiles.
//   forward saves lse = logsumexp of each row (-inf where no key is visible);
//   backward recomputes P = exp(S - lse) tile by tile:
//     dv = P^T dout,  dP = dout v^T,  dS = P o (dP - rowsum(dout o out)),  dq = scale dS k,  dk = scale dS^T q.
// Key j is hidden from query i by causality, key_lengths, a u8 mask of 0 or a float mask of -inf. What stands there has
// no effect, NaN included. A row with no visible key gives out 0 and passes no gradient. A visible score of NaN or +inf
// makes its row NaN (inf - inf); one of -inf has weight 0.
#pragma once

#include "core/kernels/kernel.h"
#include "core/random.h"

namespace tapestry {

// Where element (batch, time, head, channel) of a tensor lives, in elements: offset + strides; channels are adjacent.
// Packed q, k, v of [B, T, 3C], grouped heads, cross-attention and a key-value cache need no copies.
struct HeadsView {
  std::int64_t offset = 0, stride_batch = 0, stride_time = 0, stride_head = 0;
  std::int64_t length = 0;  // time steps
  std::int64_t at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return offset + b * stride_batch + t * stride_time + h * stride_head;
  }
};

struct AttentionOptions {
  bool causal = false;      // query i sees keys j <= i + (Tk - Tq): aligned at the end
  double scale = 0;         // 0 means 1 / sqrt(D)
  Tensor key_lengths = {};  // i32 [B]: keys at and after it are padding; empty means all keys count
  double dropout = 0;       // on the weights, inverted; element index is ((b * Hq + h) * Tq + i) * Tk + j
  RandomKey dropout_key = {};
};

struct AttentionProblem {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, head_dim = 0;
  HeadsView q = {}, k = {}, v = {}, out = {};  // query head h uses key and value head h / (heads / kv_heads)
  AttentionOptions options = {};               // scale resolved
  // Strides of the mask over [B, H, Tq, Tk], 0 where it broadcasts. u8: nonzero may attend; float: added to the scores.
  std::int64_t mask_stride[4] = {0, 0, 0, 0};

  template <class F>
  void for_each_tensor(F&& f) const {
    f(options.key_lengths);
  }
};

// A gradient written through a view; `add` comes from its one claim().
struct HeadsGrad {
  Grad grad;
  bool add = false;
};

// q, k, v, out and their gradients have one dtype; lse and the softmax are f32 for 16 bits, a float mask f32 or like q.
// mask may be empty. out and lse [B, H, Tq] (accumulate dtype) are overwritten where the views reach.
TAP_KERNEL_16BIT(attention_forward, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                 const AttentionProblem& problem, Tensor& out, Tensor& lse)
// dq, dk, dv are laid out like q, k, v. dmask (may be empty) has the shape of the float mask.
TAP_KERNEL_16BIT(attention_backward, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Tensor& mask, const Tensor& out, const Tensor& lse, const AttentionProblem& problem,
                 HeadsGrad dq, HeadsGrad dk, HeadsGrad dv, Grad dmask)

}  // namespace tapestry
