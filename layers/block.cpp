#include "layers/block.h"

namespace tapestry {

Block::Block(const BlockConfig& config, Rng& rng)
    : norm1(config.width),
      attention({.width = config.width,
                 .heads = config.heads,
                 .head_dim = config.head_dim,
                 .causal = config.causal,
                 .dropout = config.dropout,
                 .bias = config.bias},
                rng),
      norm2(config.width),
      mlp({.width = config.width,
           .hidden = config.hidden,
           .activation = config.activation,
           .dropout = config.dropout,
           .bias = config.bias},
          rng),
      norm_(config.norm) {}

template <class Attend>
Var Block::residual_stream(const Var& x, Attend&& attend) const {
  if (norm_ == NormPlacement::pre) {
    const Var h = x + attend(norm1(x));
    return h + mlp(norm2(h));
  }
  const Var h = norm1(x + attend(x));
  return norm2(h + mlp(h));
}

Var Block::operator()(const Var& x, const AttentionMask& mask) const {
  return residual_stream(x, [&](const Var& h) { return attention(h, mask); });
}

Tensor Block::extend(const Tensor& x, KeyValueCache& cache) const {
  const NoGrad no_grad;
  return residual_stream(x, [&](const Var& h) { return Var(attention.extend(h.value(), cache)); }).value();
}

void Block::visit(Visitor& v) {
  v("norm1", norm1);
  v("attention", attention);
  v("norm2", norm2);
  v("mlp", mlp);
}

}  // namespace tapestry
