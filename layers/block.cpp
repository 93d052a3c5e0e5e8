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

// attend(h, residual) is residual + attention of h.
template <class Attend>
Var Block::residual_stream(const Var& x, Attend&& attend) const {
  if (norm_ == NormPlacement::pre) {
    const Var h = attend(norm1(x), x);
    return mlp(norm2(h), h);
  }
  const Var h = norm1(attend(x, x));
  return norm2(mlp(h, h));
}

Var Block::operator()(const Var& x, const AttentionMask& mask) const {
  return residual_stream(x, [&](const Var& h, const Var& residual) { return attention(h, mask, residual); });
}

Tensor Block::extend(const Tensor& x, KeyValueCache& cache) const {
  const NoGrad no_grad;
  const auto attend = [&](const Var& h, const Var& residual) { return residual + attention.extend(h.value(), cache); };
  return residual_stream(x, attend).value();
}

void Block::visit(Visitor& v) {
  v("norm1", norm1);
  v("attention", attention);
  v("norm2", norm2);
  v("mlp", mlp);
}

}  // namespace tapestry
