#include "layers/attention.h"

#include <cmath>

#include "core/kernels/strided_copy.h"

namespace tapestry {

namespace {

void check_input(const Shape& x, std::int64_t width) {
  TAP_CHECK(x.rank() == 3 && x[2] == width, "attention: x must be [B, T, ", width, "], not ", x);
}

// packed: keys and values to come, [B, T, 3 inner].
void check_cache(const KeyValueCache& cache, const Tensor& packed, std::int64_t inner) {
  const std::int64_t batch = packed.shape()[0], time = packed.shape()[1];
  TAP_CHECK(cache.keys && cache.values, "attention: the key-value cache is empty; give it keys and values of shape [",
            batch, ", capacity, ", inner, "]");
  const Shape& s = cache.keys.shape();
  TAP_CHECK(s.rank() == 3 && s[0] == batch && s[2] == inner && cache.values.shape() == s,
            "attention: keys and values of the cache must be [", batch, ", capacity, ", inner, "], not ", s, " and ",
            cache.values.shape());
  TAP_CHECK(cache.keys.dtype() == packed.dtype() && cache.values.dtype() == packed.dtype(),
            "attention: the cache holds ", cache.keys.dtype(), " and ", cache.values.dtype(),
            ", but keys and values to come are ", packed.dtype(),
            "; make a cache of that dtype, under the same Autocast if there is one");
  TAP_CHECK(cache.length >= 0 && cache.length + time <= s[1], "attention: the cache holds ", cache.length, " of ", s[1],
            " tokens and has no room for ", time, " more; make a larger one or start afresh");
}

// Columns [first, first + C) of packed [B, T, W] -> times [at, at + T) of cached [B, capacity, C].
void append(const Tensor& packed, std::int64_t first, Tensor& cached, std::int64_t at) {
  const Shape& from = packed.shape();
  const Shape& to = cached.shape();
  const StridedLayout source{first, {from[1] * from[2], from[2], 1}};
  const StridedLayout target{at * to[2], {to[1] * to[2], to[2], 1}};
  TAP_DISPATCH(strided_copy, packed, source, from.with_back(to[2]), target, cached);
}

}  // namespace

void AttentionConfig::check() const {
  TAP_CHECK(width > 0, "attention: width must be at least 1, not ", width);
  TAP_CHECK(heads > 0, "attention: heads must be at least 1, not ", heads);
  TAP_CHECK(head_dim >= 0, "attention: head_dim must be at least 1, or 0 for width / heads, not ", head_dim);
  TAP_CHECK(head_dim > 0 || width % heads == 0, "attention: ", heads, " heads do not divide width ", width, " (", width,
            " = ", heads, "*", width / heads, " + ", width % heads, "); use ", divisors(width), ", or set head_dim");
  TAP_CHECK(dropout >= 0 && dropout <= 1, "attention: dropout must be in [0, 1], not ", dropout);
}

std::int64_t AttentionConfig::inner() const {
  check();
  return head_dim > 0 ? heads * head_dim : width;
}

Attention::Attention(const AttentionConfig& config, Rng& rng)
    : qkv(config.width, 3 * config.inner(), rng, config.bias),
      out(config.inner(), config.width, rng, config.bias),
      dropout(config.dropout),
      config_(config) {}

Var Attention::operator()(const Var& x, const AttentionMask& mask, const Var& residual) const {
  check_input(x.shape(), config_.width);
  AttentionOptions options{.causal = config_.causal, .key_lengths = mask.key_lengths};
  if (dropout.active()) {
    options.dropout = dropout.p();
    options.dropout_key = next_random_key();
  }
  return project(out, dropout, attention_packed(qkv(x), config_.heads, options, mask.mask), residual);
}

Tensor Attention::extend(const Tensor& x, KeyValueCache& cache) const {
  const NoGrad no_grad;
  const std::int64_t inner = config_.inner(), heads = config_.heads, head_dim = inner / heads;
  TAP_CHECK(config_.causal,
            "attention: extend needs causal attention, where later tokens leave earlier ones as they are");
  TAP_CHECK(!dropout.active(), "attention: extend is for inference, but dropout is on; call eval() first");
  check_input(x.shape(), config_.width);
  const Tensor packed = qkv(x).value();
  check_cache(cache, packed, inner);
  const std::int64_t batch = x.shape()[0], time = x.shape()[1], capacity = cache.keys.shape()[1];
  append(packed, inner, cache.keys, cache.length);
  append(packed, 2 * inner, cache.values, cache.length);

  AttentionProblem problem{.batch = batch, .heads = heads, .kv_heads = heads, .head_dim = head_dim};
  problem.q = {0, time * 3 * inner, 3 * inner, head_dim, time};
  problem.k = problem.v = {0, capacity * inner, inner, head_dim, cache.length + time};
  problem.out = {0, time * inner, inner, head_dim, time};
  problem.options = {.causal = true, .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
  Tensor heads_out = empty({batch, time, inner}, packed.dtype(), x.device());
  Tensor lse = empty({batch, heads, time}, accumulate_dtype(packed.dtype()), x.device());
  TAP_DISPATCH(attention_forward, packed, cache.keys, cache.values, Tensor(), problem, heads_out, lse);
  cache.length += time;
  return out(heads_out).value();
}

void Attention::visit(Visitor& v) {
  v("qkv", qkv);
  v("out", out);
  v("dropout", dropout);
}

}  // namespace tapestry
