#include "layers/models/gpt.h"

#include "autograd/autocast.h"
#include "layers/init.h"

namespace tapestry {

namespace {

const GptConfig& checked(const GptConfig& config) {
  config.check();
  return config;
}

}  // namespace

void GptConfig::check() const {
  TAP_CHECK(vocabulary > 0, "gpt: vocabulary must be at least 1, not ", vocabulary,
            "; set it to the number of tokens the tokenizer knows");
  TAP_CHECK(context > 0, "gpt: context must be at least 1, not ", context, "; it is the longest sequence of tokens");
  TAP_CHECK(layers > 0, "gpt: layers must be at least 1, not ", layers);
  TAP_CHECK(dropout >= 0 && dropout <= 1, "gpt: dropout must be in [0, 1], not ", dropout, "; 0 turns it off");
  AttentionConfig{.width = width, .heads = heads, .head_dim = head_dim}.check();
}

Gpt::Gpt(const GptConfig& config, std::uint64_t seed) : Gpt(checked(config), Rng(derive_seed(seed, "init"))) {}

Gpt::Gpt(const GptConfig& config, Rng rng)
    : token_embedding(config.vocabulary, config.width, rng),
      position_embedding(config.context, config.width, rng),
      dropout(config.dropout),
      norm(config.width),
      config_(config) {
  blocks.reserve(static_cast<std::size_t>(config.layers));
  for (std::int64_t i = 0; i < config.layers; ++i) {
    Block& block = blocks.emplace_back(BlockConfig{.width = config.width,
                                                   .heads = config.heads,
                                                   .head_dim = config.head_dim,
                                                   .norm = config.norm,
                                                   .activation = config.activation,
                                                   .dropout = config.dropout,
                                                   .bias = config.bias},
                                       rng);
    init::normal(block.attention.qkv.weight, rng);
    init::gpt2_residual(block.attention.out.weight, rng, config.layers);
    init::normal(block.mlp.up.weight, rng);
    init::gpt2_residual(block.mlp.down.weight, rng, config.layers);
  }
  if (!config.tied_head) {
    head.emplace(config.width, config.vocabulary, rng, false);
    init::normal(head->weight, rng);
  }
}

Var Gpt::embed(const Tensor& tokens, std::int64_t first_position) const {
  TAP_CHECK(tokens && tokens.shape().rank() == 2 && tokens.numel() > 0,
            "gpt: tokens must be [B, T] with B, T >= 1, not ", tokens.shape());
  const std::int64_t end = first_position + tokens.shape()[1];
  TAP_CHECK(end <= config_.context, "gpt: ", end, " tokens do not fit a context of ", config_.context,
            "; feed the last ", config_.context,
            " tokens (with a fresh cache), or build the model with a larger context");
  return dropout(token_embedding(tokens) + slice(position_embedding.weight, 0, first_position, end));
}

Var Gpt::logits(const Var& x) const {
  const Var h = norm(x);
  return head ? (*head)(h) : matmul(h, token_embedding.weight, false, true);
}

Var Gpt::operator()(const Tensor& tokens, const AttentionMask& mask) const {
  Var x = embed(tokens, 0);
  for (const Block& block : blocks) x = block(x, mask);
  return logits(x);
}

CrossEntropy Gpt::loss(const Tensor& tokens, const Tensor& targets, std::int64_t ignore_index) const {
  return cross_entropy((*this)(tokens), targets, ignore_index);
}

Gpt::Cache Gpt::make_cache(std::int64_t batch) const {
  TAP_CHECK(batch > 0, "gpt: the batch of a cache must be at least 1, not ", batch);
  const DType dtype = Autocast::low(token_embedding.weight.dtype());
  const Device device = token_embedding.weight.value().device();
  Cache cache;
  for (const Block& block : blocks) {
    const Shape shape{batch, config_.context, block.attention.config().inner()};
    cache.blocks.push_back({.keys = empty(shape, dtype, device), .values = empty(shape, dtype, device)});
  }
  return cache;
}

Tensor Gpt::extend(const Tensor& tokens, Cache& cache) const {
  const NoGrad no_grad;
  TAP_CHECK(cache.blocks.size() == blocks.size(), "gpt: the cache has ", cache.blocks.size(), " blocks, the model ",
            blocks.size(), "; make it with make_cache");
  Tensor x = embed(tokens, cache.length).value();
  for (std::size_t i = 0; i < blocks.size(); ++i) x = blocks[i].extend(x, cache.blocks[i]);
  const std::int64_t time = tokens.shape()[1];
  cache.length += time;
  return logits(slice(x, 1, time - 1, time)).value().reshape({tokens.shape()[0], config_.vocabulary});
}

std::int64_t Gpt::own_flops() const {
  std::int64_t flops = head ? 0 : 2 * token_embedding.weight.numel();
  for (const Block& block : blocks) flops += 4 * config_.context * block.attention.config().inner();
  return flops;
}

void Gpt::visit(Visitor& v) {
  v("token_embedding", token_embedding);
  v("position_embedding", position_embedding);
  v("dropout", dropout);
  v("blocks", blocks);
  v("norm", norm);
  if (head) v("head", *head);
}

}  // namespace tapestry
