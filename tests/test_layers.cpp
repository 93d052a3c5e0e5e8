// The layers one by one: shapes, names, gradients, modes, what they refuse.
#include <doctest/doctest.h>

#include <functional>

#include "layers/batchnorm.h"
#include "layers/block.h"
#include "layers/embedding.h"
#include "layers/gated_mlp.h"
#include "layers/groupnorm.h"
#include "layers/recurrent.h"
#include "layers/rmsnorm.h"
#include "layers/sequential.h"
#include "tests/allocation_counter.h"
#include "tests/compare.h"

using namespace tapestry;

namespace {

// Every Parameter of `module` is reached by visit() and gets a gradient that is not zero.
void check_all_gradients(Module& module, const std::function<Var()>& forward) {
  zero_grad(module);
  Tape tape;
  const Var y = forward();
  check_all_visited(module, tape);
  tape.backward(sum(y * Var(random_normal(y.shape(), 99, y.dtype()))));
  for (const NamedParameter& p : parameters(module)) {
    CAPTURE(p.name);
    REQUIRE(p.parameter->has_grad());
    CHECK(max_abs(p.parameter->grad()) > 0);
    CHECK(std::isfinite(max_abs(p.parameter->grad())));
  }
}

std::vector<std::string> names(Module& module) {
  std::vector<std::string> result;
  for (const NamedParameter& p : parameters(module)) result.push_back(p.name);
  return result;
}

}  // namespace

TEST_CASE("shapes and parameter names of every layer") {
  Rng rng(1);
  const Tensor x = random_normal({2, 3, 8}, 1);
  Linear linear_layer(8, 5, rng), no_bias(8, 5, rng, false);
  CHECK(linear_layer(x).shape() == Shape{2, 3, 5});
  CHECK(linear_layer(x.reshape({6, 8})).shape() == Shape{6, 5});
  CHECK(linear_layer(random_normal({8}, 1)).shape() == Shape{5});
  CHECK(names(linear_layer) == std::vector<std::string>{"weight", "bias"});
  CHECK(names(no_bias) == std::vector<std::string>{"weight"});
  CHECK(linear_layer.weight.shape() == Shape{8, 5});

  Embedding table(7, 4, rng);
  CHECK(table(random_ids({2, 3}, 7, 1)).shape() == Shape{2, 3, 4});
  CHECK(table(random_ids({}, 7, 1)).shape() == Shape{4});
  CHECK(names(table) == std::vector<std::string>{"weight"});

  LayerNorm norm(8);
  CHECK(norm(x).shape() == x.shape());
  CHECK(names(norm) == std::vector<std::string>{"weight", "bias"});

  CHECK(Dropout(0.5)(x).shape() == x.shape());

  Mlp mlp({.width = 8}, rng), narrow({.width = 8, .hidden = 3, .bias = false}, rng);
  CHECK(mlp(x).shape() == x.shape());
  CHECK(mlp.up.weight.shape() == Shape{8, 32});
  CHECK(narrow(x).shape() == x.shape());
  CHECK(names(mlp) == std::vector<std::string>{"up.weight", "up.bias", "down.weight", "down.bias"});
  CHECK(names(narrow) == std::vector<std::string>{"up.weight", "down.weight"});

  Attention attention_layer({.width = 8, .heads = 2}, rng);
  Attention wide({.width = 8, .heads = 3, .head_dim = 5}, rng);
  CHECK(attention_layer(x).shape() == x.shape());
  CHECK(wide(x).shape() == x.shape());
  CHECK(wide.qkv.weight.shape() == Shape{8, 45});
  CHECK(names(attention_layer) == std::vector<std::string>{"qkv.weight", "qkv.bias", "out.weight", "out.bias"});

  Block block({.width = 8, .heads = 2}, rng);
  CHECK(block(x).shape() == x.shape());
  CHECK(parameter_count(block) == 12 * 64 + 13 * 8);
}

TEST_CASE("every parameter of every layer gets a gradient, at sizes 1, 31 and 33") {
  Rng rng(2);
  for (const std::int64_t width : {1, 31, 33}) {
    for (const std::int64_t time : {1, 7}) {
      CAPTURE(width);
      CAPTURE(time);
      const Var x = random_normal({2, time, width}, 3);
      Linear linear_layer(width, 5, rng);
      check_all_gradients(linear_layer, [&] { return linear_layer(x); });
      Embedding table(3, width, rng);
      check_all_gradients(table, [&] { return table(random_ids({2, time}, 3, 4)); });
      if (width == 1) continue;  // the normalised value of one channel is 0, and so is what flows through it
      LayerNorm norm(width);
      check_all_gradients(norm, [&] { return norm(x); });
      for (const Activation a : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
        Mlp mlp({.width = width, .activation = a}, rng);
        check_all_gradients(mlp, [&] { return mlp(x); });
      }
      for (const bool causal : {false, true}) {
        Attention attention_layer({.width = width, .heads = 2, .head_dim = 5, .causal = causal}, rng);
        check_all_gradients(attention_layer, [&] { return attention_layer(x); });
        for (const NormPlacement placement : {NormPlacement::pre, NormPlacement::post}) {
          Block block({.width = width, .heads = 1, .norm = placement, .causal = causal}, rng);
          check_all_gradients(block, [&] { return block(x); });
        }
      }
    }
  }
}

TEST_CASE("every parameter of norms, gated layers, containers and cells gets a gradient") {
  Rng rng(3);
  for (const std::int64_t width : {31, 33}) {
    CAPTURE(width);
    const Var x = random_normal({4, width}, 5), image = random_normal({2, width, 7}, 6);
    LayerNorm second(width, LayerNormForm::std_plus_eps);
    check_all_gradients(second, [&] { return second(x); });
    RMSNorm rms(width);
    check_all_gradients(rms, [&] { return rms(x); });
    BatchNorm1d batch(width);
    check_all_gradients(batch, [&] { return batch(x); });
    check_all_gradients(batch, [&] { return batch(image); });
    batch.eval();
    check_all_gradients(batch, [&] { return batch(image); });
    GroupNorm group(1, width);
    check_all_gradients(group, [&] { return group(image); });
    for (const Activation a : {Activation::sigmoid, Activation::gelu, Activation::silu}) {
      GatedMlp gated({.width = width, .activation = a, .bias = true}, rng);
      check_all_gradients(gated, [&] { return gated(x); });
    }
    Sequential stack{Linear(width, 5, rng), ActivationLayer(Activation::tanh), Residual(Linear(5, 5, rng))};
    check_all_gradients(stack, [&] { return stack(x); });
    for (const bool norm : {false, true}) {
      const CellConfig config{.in = width, .hidden = 6, .norm = norm};
      const Var h = random_normal({4, 6}, 7);
      RnnCell rnn(config, rng);
      check_all_gradients(rnn, [&] { return rnn(x, h); });
      GruCell gru(config, rng);
      check_all_gradients(gru, [&] { return gru(x, h); });
      LstmCell lstm(config, rng);
      check_all_gradients(lstm, [&] { return lstm(x, {h, h}).h; });
    }
  }
}

TEST_CASE("norms, containers and cells allocate nothing on the heap from the third pass on") {
  Rng rng(6);
  Sequential net{Linear(8, 6, rng),
                 BatchNorm1d(6),
                 ActivationLayer(Activation::tanh),
                 LayerNorm(6, LayerNormForm::std_plus_eps),
                 GroupNorm(2, 6),
                 Residual(GatedMlp({.width = 6, .hidden = 5}, rng)),
                 RMSNorm(6)};
  const CellConfig config{.in = 6, .hidden = 4, .norm = true};
  const GruCell gru(config, rng);
  const LstmCell lstm(config, rng);
  const Var x = random_normal({3, 8}, 1), h = random_normal({3, 4}, 2);
  for (int pass = 0; pass < 5; ++pass) {
    const std::int64_t before = heap_allocations;
    {
      Tape tape;
      const Var y = net(x);
      const LstmCell::State next = lstm(y, {gru(y, h), h});
      tape.backward(sum(next.h + next.c));
    }
    if (pass >= 2) CHECK(heap_allocations - before == 0);
  }
}

TEST_CASE("Sequential and Residual: names, order, values, modes") {
  Rng rng(4);
  Sequential net{Linear(3, 4, rng), ActivationLayer(Activation::relu), Dropout(0.5), Linear(4, 3, rng)};
  CHECK(names(net) == std::vector<std::string>{"0.weight", "0.bias", "3.weight", "3.bias"});
  net.eval();
  CHECK_FALSE(net[2].training());
  const Var x = random_normal({5, 3}, 8);
  Rng again(4);
  const Linear first(3, 4, again), last(4, 3, again);
  const Tensor right = last(relu(first(x))).value();
  CHECK(same_bits(net(x).value(), right));
  const Residual<Sequential> around(std::move(net));
  CHECK(same_bits(around(x).value(), (x + Var(right)).value()));

  Sequential grown;
  CHECK(same_bits(grown(x).value(), x.value()));
  grown.add(Linear(3, 2, rng)).add(RMSNorm(2));
  CHECK(grown.size() == 2);
  CHECK(grown(x).shape() == Shape{5, 2});
  CHECK(grown[1].kind() == "RMSNorm");
  CHECK_THROWS(grown[2]);
}

TEST_CASE("GatedMlp is down(activation(gate) * up), 8/3 wide by default") {
  Rng rng(5);
  const Var x = random_normal({4, 6}, 9);
  const GatedMlp layer({.width = 6}, rng);
  CHECK(layer.gate.weight.shape() == Shape{6, 16});
  CHECK_FALSE(layer.gate.bias);
  CHECK(same_bits(layer(x).value(), layer.down(silu(layer.gate(x)) * layer.up(x)).value()));
  CHECK_THROWS_AS(GatedMlp({.width = 0}, rng), Error);
  CHECK_THROWS_AS(GatedMlp({.width = 4, .hidden = -1}, rng), Error);
}

TEST_CASE("N02 LayerNorm epsilon and estimator") {
  const LayerNorm wide_eps(2, 1);
  const Tensor a = wide_eps(tensor({1, -1})).value();
  CHECK(a.at(0) == doctest::Approx(0.7071068).epsilon(1e-6));
  CHECK(a.at(1) == doctest::Approx(-0.7071068).epsilon(1e-6));
  const LayerNorm second(2, 1, LayerNormForm::std_plus_eps);
  CHECK(second(tensor({1, -1})).value().at(0) == doctest::Approx(0.4142136).epsilon(1e-6));
  const LayerNorm second_usual(4, LayerNormForm::std_plus_eps);
  CHECK(second_usual(tensor({1, 0, 0, 0})).value().at(0) == doctest::Approx(1.499997).epsilon(1e-6));
  const LayerNorm usual(4);
  const Tensor b = usual(tensor({1, 0, 0, 0})).value();
  CHECK(b.at(0) == doctest::Approx(1.7320046).epsilon(1e-6));
  for (int i = 1; i < 4; ++i) CHECK(b.at(i) == doctest::Approx(-0.5773349).epsilon(1e-6));
}

TEST_CASE("dropout in eval mode returns its input, in training it draws anew") {
  Dropout layer(0.5);
  const Var x = random_normal({64}, 14);
  manual_seed(1);
  const Tensor first = layer(x).value(), second = layer(x).value();
  CHECK_FALSE(same_bits(first, second));
  manual_seed(1);
  CHECK(same_bits(layer(x).value(), first));
  layer.eval();
  CHECK(layer(x).value().storage() == x.value().storage());
  layer.train();
  CHECK_FALSE(layer(x).value().storage() == x.value().storage());
  const Dropout none(0), all(1);
  CHECK(same_bits(none(x).value(), x.value()));
  CHECK(max_abs(all(x).value()) == 0);
  CHECK_THROWS_WITH_AS(Dropout(-0.1), "dropout: p must be in [0, 1], not -0.1", Error);
  CHECK_THROWS_AS(Dropout(1.1), Error);
  CHECK_THROWS_AS(Dropout(std::numeric_limits<double>::quiet_NaN()), Error);
}

TEST_CASE("train and eval reach every layer below") {
  Rng rng(15);
  Block block({.width = 4, .heads = 2, .dropout = 0.5}, rng);
  block.eval();
  CHECK_FALSE(block.attention.dropout.active());
  CHECK_FALSE(block.mlp.dropout.active());
  block.train();
  CHECK(block.attention.dropout.active());
  CHECK(block.mlp.dropout.active());
}

TEST_CASE("the padding row of an embedding starts at zero and gets no gradient") {
  Rng rng(16);
  const Embedding table(5, 3, rng, 0);
  CHECK(max_abs(table.weight.value().rows(0, 1)) == 0);
  CHECK(max_abs(table.weight.value().rows(1, 1)) > 0);
  Tape tape;
  tape.backward(sum(table(from_values<std::int32_t>({0, 1, 1, 2}, {4}))));
  const Tensor& grad = table.weight.grad();
  const double expected[] = {0, 2, 1, 0, 0};
  for (int row = 0; row < 5; ++row) CHECK(grad.at(3 * row) == expected[row]);
  CHECK_THROWS_AS(Embedding(5, 3, rng, 5), Error);
  CHECK_THROWS_AS(Embedding(5, 3, rng, -2), Error);
}

TEST_CASE("layers refuse sizes that cannot be meant") {
  Rng rng(22);
  CHECK_THROWS_WITH_AS(Linear(0, 3, rng), "linear: in and out must be at least 1, not 0 and 3", Error);
  CHECK_THROWS_AS(Linear(3, -1, rng), Error);
  CHECK_THROWS_AS(Embedding(0, 3, rng), Error);
  CHECK_THROWS_AS(LayerNorm(0), Error);
  CHECK_THROWS_AS(LayerNorm(4, -1e-5), Error);
  CHECK_THROWS_AS(Mlp({.width = 0}, rng), Error);
  CHECK_THROWS_AS(Mlp({.width = 4, .hidden = -1}, rng), Error);
  CHECK_THROWS_AS(Mlp({.width = 4, .dropout = 2}, rng), Error);
  CHECK_THROWS_WITH_AS(Attention({.width = 512, .heads = 7}, rng),
                       "attention: 7 heads do not divide width 512 (512 = 7*73 + 1); use 1, 2, 4, 8, 16, ..., or set "
                       "head_dim",
                       Error);
  CHECK_THROWS_WITH_AS(Attention({.width = 5, .heads = 2}, rng),
                       "attention: 2 heads do not divide width 5 (5 = 2*2 + 1); use 1, 5, or set head_dim", Error);
  CHECK_THROWS_AS(Attention({.width = 0, .heads = 1}, rng), Error);
  CHECK_THROWS_AS(Attention({.width = 4, .heads = 0}, rng), Error);
  CHECK_THROWS_AS(Attention({.width = 4, .heads = -2}, rng), Error);
  CHECK_THROWS_AS(Attention({.width = 4, .heads = 2, .head_dim = -1}, rng), Error);
  CHECK_THROWS_AS(Attention({.width = 4, .heads = 2, .dropout = -0.5}, rng), Error);
  const Attention layer({.width = 4, .heads = 2}, rng);
  CHECK_THROWS_WITH_AS(layer(zeros({2, 4})), "attention: x must be [B, T, 4], not [2, 4]", Error);
  CHECK_THROWS_AS(layer(zeros({1, 2, 5})), Error);
}

TEST_CASE("activations by name") {
  for (const Activation a : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu,
                             Activation::tanh, Activation::sigmoid})
    CHECK(activation_from_name(name_of(a)) == a);
  CHECK_THROWS_WITH_AS(
      activation_from_name("swish"),
      "activation: no activation is named 'swish'; use one of relu, gelu, gelu_tanh, silu, tanh, sigmoid", Error);
}
