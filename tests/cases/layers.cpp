// Every layer and model, with all of its parameters. Parameters are drawn anew, large enough that each part matters.
#include <cmath>

#include "autograd/checkpoint.h"
#include "layers/batchnorm.h"
#include "layers/gated_mlp.h"
#include "layers/groupnorm.h"
#include "layers/models/gpt.h"
#include "layers/recurrent.h"
#include "layers/rmsnorm.h"
#include "layers/sequential.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

// Weights and biases of any layer as unit normals over the root of the fan-in, so values stay near 1.
void randomize(Module& module) {
  std::uint64_t stream = 100;
  for (const NamedParameter& p : parameters(module)) {
    const Shape& s = p.parameter->shape();
    const double std = s.rank() < 2 ? 0.7 : 1.2 / std::sqrt(static_cast<double>(s[0]));
    p.parameter->assign(normal(s, stream++, std).to(DType::f32));
  }
}

// f(layer, inputs). Random layers draw the same numbers each time.
template <class Layer, class F>
Case layer_row(std::string name, Layer layer, std::vector<Tensor> inputs, F f) {
  const auto shared = std::make_shared<Layer>(std::move(layer));
  randomize(*shared);
  Case c;
  c.name = std::move(name);
  c.inputs = std::move(inputs);
  c.function = [shared, f, seed = case_key(7, 0).seed](std::span<const Var> x) {
    const RandomScope random(seed, 8);
    return std::vector<Var>{f(*shared, x)};
  };
  c.module = shared;
  return c;
}
template <class Layer>
Case layer_row(std::string name, Layer layer, const Shape& x) {
  return layer_row(std::move(name), std::move(layer), {normal(x)},
                   [](const Layer& l, std::span<const Var> v) { return l(v[0]); });
}

Tensor lengths(const std::vector<std::int32_t>& values) {
  return from_values(values, {static_cast<std::int64_t>(values.size())});
}

void add_simple(std::vector<Case>& cases, Rng& rng) {
  cases.push_back(layer_row("Linear 1 to 1", Linear(1, 1, rng), {1, 1}));
  cases.push_back(layer_row("Linear 31 to 33", Linear(31, 33, rng), {2, 31}));
  cases.push_back(layer_row("Linear 7 to 5 without bias", Linear(7, 5, rng, false), {2, 3, 7}));
  cases.push_back(layer_row("Linear 131 to 67", Linear(131, 67, rng), {43, 131}));
  cases.push_back(layer_row("LayerNorm 1", LayerNorm(1), {3, 1}));
  cases.back().f32_tolerance = 0.1;  // dx is 0 here, so only rounding noise is compared
  cases.push_back(layer_row("LayerNorm 33", LayerNorm(33), {2, 3, 33}));
  cases.push_back(layer_row("LayerNorm 257", LayerNorm(257), {31, 257}));
  cases.push_back(layer_row("Embedding 5 of 3", Embedding(5, 3, rng), {},
                            [i = ids({2, 4}, 5)](const Embedding& e, std::span<const Var>) { return e(i); }));
  cases.push_back(layer_row("Embedding 67 of 31", Embedding(67, 31, rng), {},
                            [i = ids({131}, 67)](const Embedding& e, std::span<const Var>) { return e(i); }));
  cases.push_back(layer_row("Dropout 0.4", Dropout(0.4), {3, 11}));
  Dropout off(0.4);
  off.eval();
  cases.push_back(layer_row("Dropout 0.4 in eval mode", std::move(off), {3, 11}));
}

void add_mlp(std::vector<Case>& cases, Rng& rng) {
  for (const Activation a : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu})
    cases.push_back(
        layer_row(text_of("Mlp 5 ", name_of(a)), Mlp({.width = 5, .hidden = 7, .activation = a}, rng), {2, 5}));
  cases.push_back(
      layer_row("Mlp 3 dropout without bias", Mlp({.width = 3, .dropout = 0.3, .bias = false}, rng), {4, 3}));
  cases.push_back(layer_row("Mlp 33", Mlp({.width = 33}, rng), {31, 33}));
}

void add_norms(std::vector<Case>& cases) {
  cases.push_back(layer_row("LayerNorm 33 std_plus_eps", LayerNorm(33, LayerNormForm::std_plus_eps), {2, 3, 33}));
  cases.push_back(layer_row("RMSNorm 1", RMSNorm(1, 0.1), {3, 1}));
  cases.push_back(layer_row("RMSNorm 33", RMSNorm(33), {2, 3, 33}));
  cases.push_back(layer_row("BatchNorm1d 3", BatchNorm1d(3), {7, 3}));
  cases.push_back(layer_row("BatchNorm1d 3 by 5", BatchNorm1d(3), {4, 3, 5}));
  BatchNorm1d still(31);
  still.eval();
  cases.push_back(layer_row("BatchNorm1d 31 in eval mode", std::move(still), {2, 31}));
  cases.push_back(layer_row("GroupNorm 2 of 6", GroupNorm(2, 6), {3, 6, 5}));
}

void add_recurrent(std::vector<Case>& cases, Rng& rng) {
  cases.push_back(
      layer_row("CellMaps 3 to 2", CellMaps({.in = 3, .hidden = 2}, 2, rng), {normal({2, 3}, 1), normal({2, 2}, 2)},
                [](const CellMaps& m, std::span<const Var> x) { return m.from_input(x[0]) * m.from_state(x[1]); }));
  // Two steps, so that the state's gradient goes through the cell.
  auto twice = [](const auto& cell, std::span<const Var> x) { return cell(x[0] * 0.5, cell(x[0], x[1])); };
  auto lstm_twice = [](const LstmCell& cell, std::span<const Var> x) {
    const LstmCell::State s = cell(x[0] * 0.5, cell(x[0], {x[1], x[2]}));
    return s.h * 2.0 + s.c;
  };
  for (const bool norm : {false, true}) {
    const std::string with = norm ? " with norms" : "";
    const CellConfig small{.in = 3, .hidden = 4, .norm = norm},
        large{.in = 31, .hidden = 33, .bias = false, .norm = norm};
    for (const CellConfig& c : {small, large}) {
      const std::vector<Tensor> one{normal({2, c.in}, 1), normal({2, c.hidden}, 2)};
      std::vector<Tensor> two = one;
      two.push_back(normal({2, c.hidden}, 3));
      cases.push_back(layer_row(text_of("RnnCell ", c.hidden, with), RnnCell(c, rng), one, twice));
      cases.push_back(layer_row(text_of("GruCell ", c.hidden, with), GruCell(c, rng), one, twice));
      cases.push_back(layer_row(text_of("LstmCell ", c.hidden, with), LstmCell(c, rng), two, lstm_twice));
    }
  }
}

// Computed again in backward: a layer of one output with dropout, and one of two.
void add_checkpointed(std::vector<Case>& cases, Rng& rng) {
  cases.push_back(layer_row("Dropout checkpointed", Dropout(0.3), {normal({5, 7})},
                            [](const Dropout& layer, std::span<const Var> x) {
                              return checkpoint([&layer](const Var& v) { return layer(square(v)); }, x[0]);
                            }));
  cases.push_back(layer_row("LstmCell checkpointed", LstmCell({.in = 3, .hidden = 4}, rng),
                            {normal({2, 3}, 1), normal({2, 4}, 2), normal({2, 4}, 3)},
                            [](const LstmCell& cell, std::span<const Var> x) {
                              const auto [h, c] = checkpoint(
                                  [&cell](const Var& v, const Var& from_h, const Var& from_c) {
                                    const LstmCell::State s = cell(v, {from_h, from_c});
                                    return std::array<Var, 2>{s.h, s.c};
                                  },
                                  x[0], x[1], x[2]);
                              return h * 2.0 + square(c);
                            }));
}

void add_combined(std::vector<Case>& cases, Rng& rng) {
  for (const Activation a : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu,
                             Activation::tanh, Activation::sigmoid})
    cases.push_back(layer_row(text_of("ActivationLayer ", name_of(a)), ActivationLayer(a), {3, 11}));
  for (const Activation a : {Activation::sigmoid, Activation::gelu, Activation::silu})
    cases.push_back(layer_row(text_of("GatedMlp 5 ", name_of(a)),
                              GatedMlp({.width = 5, .hidden = 7, .activation = a}, rng), {2, 5}));
  cases.push_back(
      layer_row("GatedMlp 33 dropout, bias", GatedMlp({.width = 33, .dropout = 0.3, .bias = true}, rng), {3, 33}));
  cases.push_back(layer_row("Sequential of three",
                            Sequential{Linear(3, 5, rng), ActivationLayer(Activation::tanh), Linear(5, 2, rng)},
                            {4, 3}));
  cases.push_back(layer_row("Residual Linear", Residual(Linear(5, 5, rng)), {3, 5}));
}

void add_attention(std::vector<Case>& cases, Rng& rng) {
  const AttentionConfig small{.width = 6, .heads = 2};
  cases.push_back(layer_row("Attention 1 head 1", Attention({.width = 1, .heads = 1}, rng), {1, 1, 1}));
  cases.push_back(layer_row("Attention 6 causal", Attention(small, rng), {2, 3, 6}));
  cases.push_back(layer_row("Attention 6 without bias",
                            Attention({.width = 6, .heads = 3, .causal = false, .bias = false}, rng), {2, 3, 6}));
  cases.push_back(
      layer_row("Attention 6 dropout", Attention({.width = 6, .heads = 2, .dropout = 0.3}, rng), {2, 3, 6}));
  cases.push_back(layer_row("Attention 6 lengths", Attention({.width = 6, .heads = 2, .causal = false}, rng),
                            {normal({2, 3, 6})}, [](const Attention& a, std::span<const Var> x) {
                              return a(x[0], {.key_lengths = lengths({3, 1})});
                            }));
  cases.push_back(layer_row("Attention 6 float mask", Attention(small, rng), {normal({2, 3, 6}), normal({2, 3, 3}, 1)},
                            [](const Attention& a, std::span<const Var> x) { return a(x[0], {.mask = x[1]}); }));
  cases.push_back(layer_row("Attention 33", Attention({.width = 33, .heads = 3}, rng), {2, 31, 33}));
}

void add_block(std::vector<Case>& cases, Rng& rng) {
  for (const NormPlacement norm : {NormPlacement::pre, NormPlacement::post}) {
    const std::string name = norm == NormPlacement::pre ? "Block pre-LN" : "Block post-LN";
    BlockConfig config{.width = 4, .heads = 2, .hidden = 5, .norm = norm};
    cases.push_back(layer_row(name + " 4", Block(config, rng), {2, 3, 4}));
    config.dropout = 0.2;
    cases.push_back(layer_row(name + " 4 dropout", Block(config, rng), {2, 3, 4}));
    cases.push_back(layer_row(name + " 33", Block({.width = 33, .heads = 3, .norm = norm}, rng), {2, 31, 33}));
  }
  cases.push_back(layer_row("Block 4 lengths, not causal", Block({.width = 4, .heads = 2, .causal = false}, rng),
                            {normal({2, 3, 4})}, [](const Block& b, std::span<const Var> x) {
                              return b(x[0], {.key_lengths = lengths({2, 3})});
                            }));
}

void add_gpt(std::vector<Case>& cases) {
  const GptConfig tiny{.vocabulary = 5, .context = 4, .layers = 2, .heads = 2, .width = 4};
  auto logits = [i = ids({2, 3}, 5)](const Gpt& gpt, std::span<const Var>) { return gpt(i); };
  auto loss_of = [](const Shape& shape, std::int64_t vocabulary) {
    return [i = ids(shape, vocabulary, 1), t = ids(shape, vocabulary, 2)](const Gpt& gpt, std::span<const Var>) {
      return gpt.loss(i, t).loss;
    };
  };
  const auto loss = loss_of({2, 4}, 5);
  auto with = [&](auto change) {
    GptConfig config = tiny;
    change(config);
    return Gpt(config, 1);
  };
  cases.push_back(layer_row("Gpt logits, tied head", with([](GptConfig&) {}), {}, logits));
  cases.push_back(layer_row("Gpt loss, tied head", with([](GptConfig&) {}), {}, loss));
  cases.push_back(layer_row("Gpt loss, own head", with([](GptConfig& c) { c.tied_head = false; }), {}, loss));
  cases.push_back(layer_row("Gpt loss, post-LN", with([](GptConfig& c) { c.norm = NormPlacement::post; }), {}, loss));
  cases.push_back(layer_row("Gpt loss, dropout, no bias", with([](GptConfig& c) {
                              c.dropout = 0.2;
                              c.bias = false;
                            }),
                            {}, loss));
  cases.push_back(layer_row("Gpt loss, width 33",
                            Gpt({.vocabulary = 67, .context = 31, .layers = 1, .heads = 3, .width = 33}, 1), {},
                            loss_of({2, 31}, 67)));
}

}  // namespace

std::vector<Case> layer_cases() {
  Rng rng(1);
  std::vector<Case> cases;
  add_simple(cases, rng);
  add_norms(cases);
  add_mlp(cases, rng);
  add_recurrent(cases, rng);
  add_checkpointed(cases, rng);
  add_combined(cases, rng);
  add_attention(cases, rng);
  add_block(cases, rng);
  add_gpt(cases);
  return cases;
}

}  // namespace tapestry
