// Attention problems for tests, and attention written down naively: double precision, scores materialised, plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/attention.h"

namespace tapestry::attention_test {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Inputs in f64 (the mask in f64 or u8). Packed q, k and v are one tensor.
struct Setup {
  AttentionProblem problem;
  Tensor q, k, v, mask, dout;
};

struct Results {
  Tensor out, lse, dq, dk, dv, dmask;
};

inline Tensor random_tensor(const Shape& shape, std::uint64_t stream) {
  Tensor t = empty(shape, DType::f64);
  fill_normal(t, 0, 1, RandomKey{7, stream});
  return t;
}

// q, k, v and out as separate [B, T, H, D] tensors, all zero, scale 1.
inline Setup plain_setup(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t queries,
                         std::int64_t keys, std::int64_t dim) {
  Setup s;
  s.q = zeros({batch, queries, heads, dim}, DType::f64);
  s.k = zeros({batch, keys, kv_heads, dim}, DType::f64);
  s.v = zeros_like(s.k);
  s.dout = full(s.q.shape(), 1, DType::f64);
  AttentionProblem& p = s.problem;
  p.batch = batch, p.heads = heads, p.kv_heads = kv_heads, p.head_dim = dim;
  p.q = p.out = {0, queries * heads * dim, heads * dim, dim, queries};
  p.k = p.v = {0, keys * kv_heads * dim, kv_heads * dim, dim, keys};
  p.options.scale = 1;
  return s;
}

// Sets a mask whose shape broadcasts to [B, H, Tq, Tk].
inline void set_mask(Setup& s, const Tensor& mask) {
  s.mask = mask;
  for (int axis = 0; axis < 4; ++axis)
    s.problem.mask_stride[axis] = mask.shape()[axis] == 1 ? 0 : mask.shape().strides()[static_cast<std::size_t>(axis)];
}

inline Tensor target(const Tensor& like, DType dtype, bool add, std::uint64_t stream) {
  return (add ? random_tensor(like.shape(), stream) : full(like.shape(), kNaN, DType::f64)).to(dtype);
}

enum class Layout { separate, packed, cache };
enum class MaskKind { none, keep, add };

// A problem with random contents.
struct Options {
  std::int64_t batch = 2, heads = 2, kv_heads = 2, queries = 5, keys = 5, dim = 4;
  Layout layout = Layout::separate;
  MaskKind mask = MaskKind::none;
  int broadcast = 0;  // bit n: the mask has extent 1 along axis n of [B, H, Tq, Tk]
  bool causal = false, lengths = false;
  double dropout = 0;
};

inline std::string describe(const Options& o) {
  return text_of("B ", o.batch, " H ", o.heads, "/", o.kv_heads, " T ", o.queries, "/", o.keys, " D ", o.dim,
                 " layout ", static_cast<int>(o.layout), " mask ", static_cast<int>(o.mask), " broadcast ", o.broadcast,
                 " causal ", o.causal, " lengths ", o.lengths, " dropout ", o.dropout);
}

inline void set_random_mask(Setup& s, const Options& o) {
  const std::int64_t full_extent[4] = {o.batch, o.heads, o.queries, o.keys};
  std::int64_t extent[4];
  for (int axis = 0; axis < 4; ++axis) extent[axis] = o.broadcast >> axis & 1 ? 1 : full_extent[axis];
  const Tensor numbers = random_tensor({extent[0], extent[1], extent[2], extent[3]}, 5);
  Tensor mask = empty(numbers.shape(), o.mask == MaskKind::keep ? DType::u8 : DType::f64);
  for (std::int64_t i = 0; i < mask.numel(); ++i) {
    const double x = numbers.at(i);
    if (o.mask == MaskKind::keep)
      mask.mutable_data<std::uint8_t>()[i] = x > 0 ? static_cast<std::uint8_t>(1 + i % 255) : 0;
    else
      mask.mutable_data<double>()[i] = x > 1 ? -kInf : x;
  }
  set_mask(s, mask);
}

inline Setup make_setup(const Options& o) {
  Setup s = plain_setup(o.batch, o.heads, o.kv_heads, o.queries, o.keys, o.dim);
  AttentionProblem& p = s.problem;
  p.options.scale = 1 / std::sqrt(static_cast<double>(o.dim));
  p.options.causal = o.causal;
  p.options.dropout = o.dropout;
  p.options.dropout_key = {11, 3};
  if (o.layout == Layout::packed) {
    const std::int64_t width = (o.heads + 2 * o.kv_heads) * o.dim;
    s.q = s.k = s.v = zeros({o.batch, o.queries, width}, DType::f64);
    p.q = {0, o.queries * width, width, o.dim, o.queries};
    p.k = p.v = {o.heads * o.dim, o.queries * width, width, o.dim, o.queries};
    p.v.offset = (o.heads + o.kv_heads) * o.dim;
  } else if (o.layout == Layout::cache) {  // [B, H, capacity, D], the first and last steps not in use; out with gaps
    const std::int64_t capacity = o.keys + 5;
    s.k = zeros({o.batch, o.kv_heads, capacity, o.dim}, DType::f64);
    s.v = zeros_like(s.k);
    p.k = p.v = {2 * o.dim, o.kv_heads * capacity * o.dim, o.dim, capacity * o.dim, o.keys};
    s.dout = zeros({o.batch, o.queries, o.heads, o.dim + 3}, DType::f64);
    p.out = {1, o.queries * o.heads * (o.dim + 3), o.heads * (o.dim + 3), o.dim + 3, o.queries};
  }
  std::uint64_t stream = 0;
  for (Tensor* t : {&s.q, &s.k, &s.v, &s.dout}) fill_normal(*t, 0, 1, RandomKey{7, ++stream});
  if (o.lengths) {
    p.options.key_lengths = empty({o.batch}, DType::i32);
    for (std::int64_t b = 0; b < o.batch; ++b)
      p.options.key_lengths.mutable_data<std::int32_t>()[b] = static_cast<std::int32_t>((b + 1) * o.keys / 3);
  }
  if (o.mask != MaskKind::none) set_random_mask(s, o);
  return s;
}

// The setup with every number as `dtype` holds it.
inline Setup rounded(const Setup& s, DType dtype) {
  const auto round = [&](const Tensor& t) { return t.to(dtype).to(DType::f64); };
  Setup r = s;
  r.q = round(s.q);
  r.k = s.k.storage() == s.q.storage() ? r.q : round(s.k);
  r.v = s.v.storage() == s.q.storage() ? r.q : round(s.v);
  r.dout = round(s.dout);
  if (s.mask && s.mask.dtype() != DType::u8) r.mask = round(s.mask);
  return r;
}

// Memory for the results: NaN, or random numbers for gradients that are added to. A float mask of mask_dtype.
inline Results make_results(const Setup& s, DType dtype, DType mask_dtype, bool add) {
  const AttentionProblem& p = s.problem;
  Results r;
  r.out = target(s.dout, dtype, false, 0);
  r.lse = full({p.batch, p.heads, p.q.length}, kNaN, accumulate_dtype(dtype));
  r.dq = target(s.q, dtype, add, 101);
  r.dk = s.k.storage() == s.q.storage() ? r.dq : target(s.k, dtype, add, 102);
  r.dv = s.v.storage() == s.q.storage() ? r.dq : target(s.v, dtype, add, 103);
  if (s.mask && s.mask.dtype() != DType::u8) r.dmask = target(s.mask, mask_dtype, add, 104);
  return r;
}
inline Results make_results(const Setup& s, DType dtype, bool add) { return make_results(s, dtype, dtype, add); }

// Runs the kernels in the dtype of r.out. Gradients whose tensor in r is empty are not asked for.
inline void run_kernels(const Setup& s, DType mask_dtype, Results& r, bool add) {
  const DType dtype = r.out.dtype();
  const Tensor q = s.q.to(dtype), k = s.k.to(dtype), v = s.v.to(dtype), dout = s.dout.to(dtype);
  const Tensor mask = s.mask && s.mask.dtype() != DType::u8 ? s.mask.to(mask_dtype) : s.mask;
  cpu::attention_forward(q, k, v, mask, s.problem, r.out, r.lse);
  const auto slot_of = [&](const Tensor& t, bool set) {
    return GradSlot{.tensor = t, .shape = t.shape(), .dtype = t ? t.dtype() : dtype, .set = set, .pinned = true};
  };
  GradSlot dq = slot_of(r.dq, true), dk = slot_of(r.dk, true), dv = slot_of(r.dv, true), dmask = slot_of(r.dmask, add);
  std::uint8_t claimed_for_us = 0, claimed_mask = 0;  // the caller claims dq, dk and dv
  const auto grad_of = [&](GradSlot& slot) { return slot.tensor ? Grad(&slot, &claimed_for_us) : Grad(); };
  cpu::attention_backward(dout, q, k, v, mask, r.out, r.lse, s.problem, {grad_of(dq), add}, {grad_of(dk), add},
                          {grad_of(dv), add}, r.dmask ? Grad(&dmask, &claimed_mask) : Grad());
  TAP_CHECK(claimed_for_us == 0 && claimed_mask == (r.dmask ? 1 : 0), "the kernel must claim dmask once, and only it");
}

inline void run_kernels(const Setup& s, Results& r, bool add) { run_kernels(s, r.out.dtype(), r, add); }

inline Results run_kernels(const Setup& s, DType dtype, bool add = false) {
  Results r = make_results(s, dtype, add);
  run_kernels(s, r, add);
  return r;
}

// Whether key j is visible, what is added to its score, and what dropout multiplies its weight with.
struct Position {
  bool visible;
  double added, factor;
};
inline Position position(const Setup& s, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const AttentionProblem& p = s.problem;
  const AttentionOptions& o = p.options;
  Position at{true, 0, 1};
  if (o.causal && j > i + p.k.length - p.q.length) at.visible = false;
  if (o.key_lengths && j >= o.key_lengths.data<std::int32_t>()[b]) at.visible = false;
  if (s.mask) {
    const double m =
        s.mask.at(b * p.mask_stride[0] + h * p.mask_stride[1] + i * p.mask_stride[2] + j * p.mask_stride[3]);
    if (s.mask.dtype() == DType::u8 ? m == 0 : m == -kInf) at.visible = false;
    if (s.mask.dtype() != DType::u8) at.added = m;
  }
  const std::int64_t element = ((b * p.heads + h) * p.q.length + i) * p.k.length + j;
  if (o.dropout > 0) at.factor = o.dropout_key.uniform(element) >= o.dropout ? 1 / (1 - o.dropout) : 0;
  return at;
}

inline void reference(const Setup& s, Results& r, bool add) {
  const AttentionProblem& p = s.problem;
  const std::int64_t queries = p.q.length, keys = p.k.length, dim = p.head_dim;
  const double scale = p.options.scale;
  const double *q = s.q.data<double>(), *k = s.k.data<double>(), *v = s.v.data<double>(), *dout = s.dout.data<double>();
  double *out = r.out.mutable_data<double>(), *lse = r.lse.mutable_data<double>();
  double *dq = r.dq.mutable_data<double>(), *dk = r.dk.mutable_data<double>(), *dv = r.dv.mutable_data<double>();
  double* dmask = r.dmask ? r.dmask.mutable_data<double>() : nullptr;
  if (!add) {
    if (dmask) r.dmask.fill(0);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t d = 0; d < dim; ++d) {
        for (std::int64_t h = 0; h < p.heads; ++h)
          for (std::int64_t i = 0; i < queries; ++i) dq[p.q.at(b, i, h) + d] = 0;
        for (std::int64_t h = 0; h < p.kv_heads; ++h)
          for (std::int64_t j = 0; j < keys; ++j) dk[p.k.at(b, j, h) + d] = dv[p.v.at(b, j, h) + d] = 0;
      }
    }
  }
  std::vector<double> weight(static_cast<std::size_t>(keys)), dweight(weight);
  std::vector<Position> at(static_cast<std::size_t>(keys));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int64_t kv = h / (p.heads / p.kv_heads);
      for (std::int64_t i = 0; i < queries; ++i) {
        const double *query = q + p.q.at(b, i, h), *dy = dout + p.out.at(b, i, h);
        double largest = -kInf, sum = 0, mean = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          const auto n = static_cast<std::size_t>(j);
          at[n] = position(s, b, h, i, j);
          double product = 0;
          for (std::int64_t d = 0; d < dim; ++d) product += query[d] * k[p.k.at(b, j, kv) + d];
          weight[n] = product * scale + at[n].added;
          if (at[n].visible) largest = std::max(largest, weight[n]);
        }
        for (std::size_t n = 0; n < at.size(); ++n) {
          weight[n] = at[n].visible ? std::exp(weight[n] - largest) : 0;
          sum += weight[n];
        }
        lse[(b * p.heads + h) * queries + i] = sum == 0 ? -kInf : largest + std::log(sum);
        double* y = out + p.out.at(b, i, h);
        for (std::int64_t d = 0; d < dim; ++d) y[d] = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          const auto n = static_cast<std::size_t>(j);
          if (!at[n].visible) continue;
          weight[n] /= sum;
          dweight[n] = 0;
          for (std::int64_t d = 0; d < dim; ++d) {
            y[d] += weight[n] * at[n].factor * v[p.v.at(b, j, kv) + d];
            dv[p.v.at(b, j, kv) + d] += weight[n] * at[n].factor * dy[d];
            dweight[n] += dy[d] * v[p.v.at(b, j, kv) + d] * at[n].factor;
          }
          mean += weight[n] * dweight[n];
        }
        for (std::int64_t j = 0; j < keys; ++j) {
          const auto n = static_cast<std::size_t>(j);
          if (!at[n].visible) continue;
          const double dscore = weight[n] * (dweight[n] - mean);
          for (std::int64_t d = 0; d < dim; ++d) {
            dq[p.q.at(b, i, h) + d] += scale * dscore * k[p.k.at(b, j, kv) + d];
            dk[p.k.at(b, j, kv) + d] += scale * dscore * query[d];
          }
          if (dmask)
            dmask[b * p.mask_stride[0] + h * p.mask_stride[1] + i * p.mask_stride[2] + j * p.mask_stride[3]] += dscore;
        }
      }
    }
  }
}

inline Results reference(const Setup& s, bool add = false) {
  Results r = make_results(s, DType::f64, add);
  reference(s, r, add);
  return r;
}

// The largest |a - b| / (1 + |b|); equal infinities and two NaNs count as equal.
inline double difference(const Tensor& a, const Tensor& b) {
  if (!a || !b) return a || b ? kInf : 0;
  double worst = a.shape() == b.shape() ? 0 : kInf;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.at(i), y = b.at(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double here = std::abs(x - y) / (1 + std::abs(y));
    worst = std::isfinite(here) ? std::max(worst, here) : kInf;
  }
  return worst;
}
inline double difference(const Results& a, const Results& b) {
  double worst = std::max(difference(a.out, b.out), difference(a.lse, b.lse));
  worst = std::max({worst, difference(a.dq, b.dq), difference(a.dk, b.dk), difference(a.dv, b.dv)});
  return std::max(worst, difference(a.dmask, b.dmask));
}

inline bool same_bits(const Results& a, const Results& b) {
  return tapestry::same_bits(a.out, b.out) && tapestry::same_bits(a.lse, b.lse) && tapestry::same_bits(a.dq, b.dq) &&
         tapestry::same_bits(a.dk, b.dk) && tapestry::same_bits(a.dv, b.dv) &&
         (!a.dmask || tapestry::same_bits(a.dmask, b.dmask));
}

}  // namespace tapestry::attention_test
