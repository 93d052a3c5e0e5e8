#include "core/kernels/attention.h"

#include <cmath>

#include "autograd/ops.h"
#include "autograd/ops/mask.h"
#include "autograd/ops/operands.h"

namespace tapestry {

namespace {

// [B, T, H, D] as it lies, or the `part`-th C columns of [B, T, parts * C] read as heads.
HeadsView heads_view(std::int64_t length, std::int64_t heads, std::int64_t head_dim, std::int64_t parts = 1,
                     std::int64_t part = 0) {
  const std::int64_t width = heads * head_dim;
  return {part * width, length * parts * width, parts * width, head_dim, length};
}

void set_mask(const Var& mask, DType dtype, AttentionProblem& p) {
  if (!mask) return;
  const Shape full{p.batch, p.heads, p.q.length, p.k.length};
  TAP_CHECK(mask.shape().rank() <= 4 && broadcast("attention", mask.shape(), full) == full, "attention: the mask is ",
            mask.shape(), ", which does not broadcast to [B, H, Tq, Tk] = ", full);
  TAP_CHECK(mask.dtype() == DType::u8 || mask.dtype() == dtype || mask.dtype() == accumulate_dtype(dtype),
            "attention: q is ", dtype, ", so the mask must be u8, ", dtype, " or ", accumulate_dtype(dtype), ", not ",
            mask.dtype(), "; cast() converts it");
  TAP_CHECK(mask.dtype() == DType::u8 || mask.tracked() || !detail::looks_like_keep_mask(mask.value()),
            "attention: a float mask is added to the scores, but this one holds only 0 and 1; for true = may attend "
            "use a u8 mask");
  const auto strides = mask.shape().strides();
  const int rank = mask.shape().rank();
  for (int i = 1; i <= rank; ++i) p.mask_stride[4 - i] = mask.shape()[-i] == 1 ? 0 : strides[rank - i];
}

void set_options(const AttentionOptions& options, AttentionProblem& p) {
  p.options = options;
  if (options.scale == 0) p.options.scale = 1 / std::sqrt(static_cast<double>(p.head_dim));
  TAP_CHECK(options.dropout >= 0 && options.dropout <= 1, "attention: dropout must be in [0, 1], not ",
            options.dropout);
  const Tensor& lengths = options.key_lengths;
  TAP_CHECK(!lengths || (lengths.dtype() == DType::i32 && lengths.shape() == Shape{p.batch}),
            "attention: key_lengths must be i32 [", p.batch, "], not ", lengths.dtype(), " ", lengths.shape());
}

Tensor empty_lse(const Var& q, const AttentionProblem& p) {
  return empty({p.batch, p.heads, p.q.length}, accumulate_dtype(q.dtype()), q.device());
}

HeadsGrad claim(Grad grad) { return grad ? HeadsGrad{grad, grad.claim()} : HeadsGrad{}; }

}  // namespace

Var attention(const Var& q_, const Var& k_, const Var& v_, const AttentionOptions& options, const Var& mask) {
  const auto [q, k, v] = detail::autocast<"attention">(q_, k_, v_);
  const Shape &sq = q.shape(), &sk = k.shape(), &sv = v.shape();
  TAP_CHECK(sq.rank() == 4 && sk.rank() == 4 && sv == sk,
            "attention: needs q [B, Tq, Hq, D] and equal k, v [B, Tk, "
            "Hkv, D], not ",
            sq, ", ", sk, " and ", sv);
  TAP_CHECK(sq[0] == sk[0] && sq[3] == sk[3], "attention: q ", sq, " and k ", sk, " differ in batch or head size");
  TAP_CHECK(sk[2] > 0 && sq[2] % sk[2] == 0, "attention: ", sk[2], " key heads must divide ", sq[2], " query heads");
  TAP_CHECK(q.dtype() == k.dtype() && q.dtype() == v.dtype(), "attention: q, k and v must have one dtype, not ",
            q.dtype(), ", ", k.dtype(), " and ", v.dtype(), "; convert them with cast()");
  AttentionProblem p;
  p.batch = sq[0];
  p.heads = sq[2];
  p.kv_heads = sk[2];
  p.head_dim = sq[3];
  p.q = p.out = heads_view(sq[1], p.heads, p.head_dim);
  p.k = p.v = heads_view(sk[1], p.kv_heads, p.head_dim);
  set_options(options, p);
  set_mask(mask, q.dtype(), p);

  Tensor out = empty_like(q.value()), lse = empty_lse(q, p);
  TAP_DISPATCH(attention_forward, q.value(), k.value(), v.value(), mask.value(), p, out, lse);
  return record(
      "attention", out,
      [q = save(q), k = save(k), v = save(v), mask = save(mask), lengths = save(options.key_lengths), out = save(out),
       lse, p](const Tensor& dout, Grad dq, Grad dk, Grad dv, Grad dmask) {
        lengths();  // p shares its storage: checks that it was not changed
        TAP_DISPATCH(attention_backward, dout, q(), k(), v(), mask(), out(), lse, p, claim(dq), claim(dk), claim(dv),
                     dmask);
      },
      q, k, v, mask);
}

Var attention_packed(const Var& qkv_, std::int64_t heads, const AttentionOptions& options, const Var& mask) {
  const auto [qkv] = detail::autocast<"attention_packed">(qkv_);
  const Shape& s = qkv.shape();
  TAP_CHECK(s.rank() == 3 && s[2] % 3 == 0, "attention: packed q, k, v must be [B, T, 3C], not ", s);
  const std::int64_t width = s[2] / 3;
  TAP_CHECK(heads > 0 && width % heads == 0, "attention: ", heads, " heads do not divide width ", width);
  AttentionProblem p;
  p.batch = s[0];
  p.heads = p.kv_heads = heads;
  p.head_dim = width / heads;
  p.q = heads_view(s[1], heads, p.head_dim, 3, 0);
  p.k = heads_view(s[1], heads, p.head_dim, 3, 1);
  p.v = heads_view(s[1], heads, p.head_dim, 3, 2);
  p.out = heads_view(s[1], heads, p.head_dim);
  set_options(options, p);
  set_mask(mask, qkv.dtype(), p);

  Tensor out = empty(s.with_back(width), qkv.dtype(), qkv.device()), lse = empty_lse(qkv, p);
  TAP_DISPATCH(attention_forward, qkv.value(), qkv.value(), qkv.value(), mask.value(), p, out, lse);
  return record(
      "attention", out,
      [qkv = save(qkv), mask = save(mask), lengths = save(options.key_lengths), out = save(out), lse, p](
          const Tensor& dout, Grad dqkv, Grad dmask) {
        lengths();
        const HeadsGrad part = claim(dqkv);
        TAP_DISPATCH(attention_backward, dout, qkv(), qkv(), qkv(), mask(), out(), lse, p, part, part, part, dmask);
      },
      qkv, mask);
}

}  // namespace tapestry
