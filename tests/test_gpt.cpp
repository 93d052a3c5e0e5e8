// The GPT model: names, sizes, gradients, causality, the key-value cache, moves, errors, allocations.
#include <doctest/doctest.h>

#include "core/parallel.h"
#include "layers/models/gpt.h"
#include "optim/adam.h"
#include "tests/allocation_counter.h"
#include "tests/compare.h"

using namespace tapestry;

namespace {

GptConfig tiny() { return {.vocabulary = 11, .context = 12, .layers = 2, .heads = 2, .width = 10}; }

double backward(const Gpt& model, const Tensor& tokens, const Tensor& targets) {
  Tape tape;
  const CrossEntropy result = model.loss(tokens, targets);
  tape.backward(result.loss);
  return result.loss.item();
}

void check_all_gradients(Gpt& model, const Tensor& tokens, const Tensor& targets) {
  zero_grad(model);
  Tape tape;
  const CrossEntropy result = model.loss(tokens, targets);
  check_all_visited(model, tape);
  tape.backward(result.loss);
  CHECK(std::isfinite(result.loss.item()));
  for (const NamedParameter& p : parameters(model)) {
    CAPTURE(p.name);
    REQUIRE(p.parameter->has_grad());
    CHECK(max_abs(p.parameter->grad()) > 0);
    CHECK(std::isfinite(max_abs(p.parameter->grad())));
  }
}

double deviation(const Parameter& p) {
  double squares = 0;
  for (float value : p.value().to_vector<float>()) squares += static_cast<double>(value) * value;
  return std::sqrt(squares / static_cast<double>(p.numel()));
}

Tensor columns(const Tensor& t, std::int64_t begin, std::int64_t end) { return slice(t, 1, begin, end).value(); }

}  // namespace

TEST_CASE("parameter names, shapes and count") {
  GptConfig config = tiny();
  config.layers = 1;
  Gpt model(config, 1);
  const std::vector<std::pair<std::string, Shape>> expected = {
      {"token_embedding.weight", {11, 10}},
      {"position_embedding.weight", {12, 10}},
      {"blocks.0.norm1.weight", {10}},
      {"blocks.0.norm1.bias", {10}},
      {"blocks.0.attention.qkv.weight", {10, 30}},
      {"blocks.0.attention.qkv.bias", {30}},
      {"blocks.0.attention.out.weight", {10, 10}},
      {"blocks.0.attention.out.bias", {10}},
      {"blocks.0.norm2.weight", {10}},
      {"blocks.0.norm2.bias", {10}},
      {"blocks.0.mlp.up.weight", {10, 40}},
      {"blocks.0.mlp.up.bias", {40}},
      {"blocks.0.mlp.down.weight", {40, 10}},
      {"blocks.0.mlp.down.bias", {10}},
      {"norm.weight", {10}},
      {"norm.bias", {10}},
  };
  const std::vector<NamedParameter> got = parameters(model);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].name == expected[i].first);
    CHECK(got[i].parameter->shape() == expected[i].second);
    CHECK(got[i].aliases.empty());
  }
}

TEST_CASE("a tied head is the token embedding, counted once") {
  GptConfig config = tiny();
  Gpt tied(config, 1);
  config.tied_head = false;
  Gpt untied(config, 1);
  CHECK(parameter_count(untied) - parameter_count(tied) == 11 * 10);
  CHECK(parameters(untied).back().name == "head.weight");
  CHECK(parameters(untied).back().parameter->shape() == Shape{10, 11});

  // The logits follow the embedding's own weight.
  const Tensor tokens = random_ids({1, 3}, 11, 1);
  const Tensor before = tied(tokens).value();
  CHECK(before.shape() == Shape{1, 3, 11});
  tied.token_embedding.weight.mutable_value().fill(0);
  CHECK(max_abs(tied(tokens).value()) == 0);
  CHECK(max_abs(before) > 0);
}

TEST_CASE("every parameter gets a gradient, in every configuration") {
  const Tensor tokens = random_ids({2, 12}, 11, 2), targets = random_ids({2, 12}, 11, 3);
  for (const NormPlacement norm : {NormPlacement::pre, NormPlacement::post})
    for (const Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu})
      for (const bool tied : {true, false})
        for (const bool bias : {true, false}) {
          GptConfig config = tiny();
          config.norm = norm;
          config.activation = activation;
          config.tied_head = tied;
          config.bias = bias;
          Gpt model(config, 4);
          check_all_gradients(model, tokens, targets);
        }
}

TEST_CASE("one token, one layer, one head, one of a batch, head size 5") {
  const GptConfig configs[] = {{.vocabulary = 2, .context = 1, .layers = 1, .heads = 1, .width = 2},
                               {.vocabulary = 3, .context = 5, .layers = 1, .heads = 2, .width = 10},
                               {.vocabulary = 50, .context = 33, .layers = 1, .heads = 3, .width = 33},
                               {.vocabulary = 7, .context = 4, .layers = 1, .heads = 3, .width = 4, .head_dim = 5}};
  for (const GptConfig& config : configs) {
    Gpt model(config, 5);
    const Tensor tokens = random_ids({1, config.context}, config.vocabulary, 6);
    check_all_gradients(model, tokens, random_ids({1, config.context}, config.vocabulary, 8));
    CHECK(model(columns(tokens, 0, 1)).shape() == Shape{1, 1, config.vocabulary});
  }
}

TEST_CASE("GPT-2's initial weights") {
  const GptConfig config{.vocabulary = 65, .context = 64, .layers = 8, .heads = 4, .width = 64, .tied_head = false};
  Gpt model(config, 6), same(config, 6), other(config, 7);
  for (const NamedParameter& p : parameters(model)) {
    CAPTURE(p.name);
    const bool residual = p.name.ends_with("attention.out.weight") || p.name.ends_with("mlp.down.weight");
    if (p.parameter->shape().rank() == 2)
      CHECK(deviation(*p.parameter) == doctest::Approx(residual ? 0.005 : 0.02).epsilon(0.04));
    else
      CHECK(p.parameter->value().to_vector<float>() ==
            std::vector<float>(static_cast<std::size_t>(p.parameter->numel()), p.name.ends_with("bias") ? 0.f : 1.f));
  }
  const std::vector<NamedParameter> a = parameters(model), b = parameters(same), c = parameters(other);
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(same_bits(a[i].parameter->value(), b[i].parameter->value()));
    if (a[i].parameter->shape().rank() == 2) CHECK_FALSE(same_bits(a[i].parameter->value(), c[i].parameter->value()));
  }
  // No two weights share their random numbers.
  CHECK_FALSE(same_bits(model.blocks[0].mlp.up.weight.value(), model.blocks[1].mlp.up.weight.value()));
}

TEST_CASE("a new model is about as unsure as it should be") {
  const Gpt model({.vocabulary = 65, .context = 32, .layers = 2, .heads = 4, .width = 64}, 1);
  const double loss = model.loss(random_ids({4, 32}, 65, 1), random_ids({4, 32}, 65, 2)).loss.item();
  CHECK(loss == doctest::Approx(std::log(65.0)).epsilon(0.02));
}

TEST_CASE("changing a token changes no output before it") {
  for (const NormPlacement norm : {NormPlacement::pre, NormPlacement::post}) {
    GptConfig config = tiny();
    config.norm = norm;
    const Gpt model(config, 8);
    const Tensor tokens = random_ids({2, 12}, 11, 9);
    const Tensor expected = model(tokens).value();
    for (const std::int64_t at : {1, 6, 11}) {
      Tensor changed = tokens.clone();
      std::int32_t* ids = changed.mutable_data<std::int32_t>();
      ids[at] = (ids[at] + 1) % 11;
      const Tensor got = model(changed).value();
      CHECK(same_bits(columns(got, 0, at), columns(expected, 0, at)));
      CHECK_FALSE(same_bits(columns(got, at, 12), columns(expected, at, 12)));
      CHECK(same_bits(got.rows(1, 1), expected.rows(1, 1)));
    }
  }
}

TEST_CASE("padding changes nothing: logits, loss and gradients of the short sequence") {
  Gpt model(tiny(), 10);
  const Tensor tokens = random_ids({1, 9}, 11, 11), targets = random_ids({1, 9}, 11, 12);
  const Tensor expected = model(columns(tokens, 0, 6)).value();
  const Tensor lengths = from_values<std::int32_t>({6}, {1});
  CHECK(relative_error(columns(model(tokens, {.key_lengths = lengths}).value(), 0, 6), expected) < 1e-6);

  Tensor ignored = targets.clone();
  for (std::int64_t i = 6; i < 9; ++i) ignored.mutable_data<std::int32_t>()[i] = -100;
  const double short_loss = backward(model, columns(tokens, 0, 6), columns(targets, 0, 6));
  std::vector<Tensor> grads;
  for (const NamedParameter& p : parameters(model)) grads.push_back(p.parameter->grad().clone());
  zero_grad(model);
  CHECK(backward(model, tokens, ignored) == doctest::Approx(short_loss).epsilon(1e-6));
  std::size_t i = 0;
  for (const NamedParameter& p : parameters(model)) CHECK(relative_error(p.parameter->grad(), grads[i++]) < 1e-5);
  CHECK(model.loss(tokens, ignored).valid_tokens == 6);
}

TEST_CASE("dropout is on in training and off in eval mode") {
  GptConfig config = tiny();
  Gpt plain(config, 13);
  config.dropout = 0.5;
  Gpt model(config, 13);
  const Tensor tokens = random_ids({2, 8}, 11, 14);
  const Tensor expected = plain(tokens).value();
  manual_seed(3);
  const Tensor first = model(tokens).value(), second = model(tokens).value();
  CHECK_FALSE(same_bits(first, second));
  model.eval();
  CHECK(same_bits(model(tokens).value(), expected));
  CHECK(same_bits(model(tokens).value(), expected));
  model.train();
  manual_seed(3);
  CHECK(same_bits(model(tokens).value(), first));
}

TEST_CASE("dropout of 1 leaves nothing of the embeddings nor of the blocks") {
  GptConfig config = tiny();
  config.dropout = 1;
  Gpt model(config, 13);
  const Tensor tokens = random_ids({2, 8}, 11, 14);
  CHECK(max_abs(model(tokens).value()) == 0);
  Rng rng(1);
  const Mlp mlp({.width = 4, .dropout = 1}, rng);
  CHECK(max_abs(mlp(random_normal({3, 4}, 1)).value()) == 0);
}

TEST_CASE("the key-value cache gives the logits of the whole sequence, for every split") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const NormPlacement norm : {NormPlacement::pre, NormPlacement::post})
      for (const bool tied : {true, false}) {
        GptConfig config = tiny();
        config.norm = norm;
        config.tied_head = tied;
        Gpt model(config, 15);
        convert(model, dtype);
        const Tensor tokens = random_ids({2, 12}, 11, 16);
        const Tensor all = model(tokens).value();
        const auto expected = [&](std::int64_t t) { return columns(all, t, t + 1).reshape({2, 11}); };
        const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
        for (const std::int64_t prompt : {1, 2, 5, 11, 12}) {
          CAPTURE(prompt);
          Gpt::Cache cache = model.make_cache(2);
          CHECK(relative_error(model.extend(columns(tokens, 0, prompt), cache), expected(prompt - 1)) < tolerance);
          for (std::int64_t t = prompt; t < 12; ++t)
            CHECK(relative_error(model.extend(columns(tokens, t, t + 1), cache), expected(t)) < tolerance);
          CHECK(cache.length == 12);
        }
        Gpt::Cache cache = model.make_cache(2);
        for (const std::int64_t t : {0, 4, 8})
          CHECK(relative_error(model.extend(columns(tokens, t, t + 4), cache), expected(t + 3)) < tolerance);
      }
}

TEST_CASE("a moved model keeps working") {
  const Tensor tokens = random_ids({2, 8}, 11, 17);
  Gpt first(tiny(), 18);
  const Tensor expected = first(tokens).value();
  Gpt second = std::move(first);
  CHECK(same_bits(second(tokens).value(), expected));
  std::vector<Gpt> several;
  several.push_back(std::move(second));
  several.emplace_back(tiny(), 19);
  CHECK(same_bits(several[0](tokens).value(), expected));
  CHECK_FALSE(same_bits(several[1](tokens).value(), expected));
  several[1] = std::move(several[0]);
  CHECK(same_bits(several[1](tokens).value(), expected));
  check_all_gradients(several[1], tokens, tokens);
}

TEST_CASE("a configuration that cannot work says which field and what to do") {
  const auto with = [](auto change) {
    GptConfig config = tiny();
    change(config);
    Gpt model(config, 1);
  };
  CHECK_THROWS_WITH_AS(with([](GptConfig& c) { c.heads = 7, c.width = 512; }),
                       "attention: 7 heads do not divide width 512 (512 = 7*73 + 1); use 1, 2, 4, 8, 16, ..., or set "
                       "head_dim",
                       Error);
  CHECK_THROWS_WITH_AS(with([](GptConfig& c) { c.vocabulary = 0; }),
                       "gpt: vocabulary must be at least 1, not 0; set it to the number of tokens the tokenizer knows",
                       Error);
  CHECK_THROWS_WITH_AS(with([](GptConfig& c) { c.context = 0; }),
                       "gpt: context must be at least 1, not 0; it is the longest sequence of tokens", Error);
  CHECK_THROWS_WITH_AS(with([](GptConfig& c) { c.layers = 0; }), "gpt: layers must be at least 1, not 0", Error);
  CHECK_THROWS_WITH_AS(with([](GptConfig& c) { c.dropout = -0.1; }),
                       "gpt: dropout must be in [0, 1], not -0.1; 0 turns it off", Error);
  CHECK_THROWS_AS(with([](GptConfig& c) { c.dropout = 1.5; }), Error);
  CHECK_THROWS_AS(with([](GptConfig& c) { c.heads = 0; }), Error);
  CHECK_THROWS_AS(with([](GptConfig& c) { c.width = 0; }), Error);
  CHECK_THROWS_AS(with([](GptConfig& c) { c.width = -8; }), Error);
  CHECK_THROWS_AS(with([](GptConfig& c) { c.head_dim = -1; }), Error);
  CHECK_THROWS_AS(with([](GptConfig& c) { c.vocabulary = -3; }), Error);
}

TEST_CASE("tokens that cannot work say what to do") {
  const Gpt model(tiny(), 1);
  CHECK_THROWS_WITH_AS(model(random_ids({1, 13}, 11, 1)),
                       "gpt: 13 tokens do not fit a context of 12; feed the last 12 tokens (with a fresh cache), or "
                       "build the model with a larger context",
                       Error);
  CHECK_THROWS_AS(model(random_ids({4}, 11, 1)), Error);
  CHECK_THROWS_AS(model(zeros({1, 0}, DType::i32)), Error);
  CHECK_THROWS_AS(model(Tensor()), Error);
  CHECK_THROWS_AS(model(from_values<std::int32_t>({11}, {1, 1})), Error);
  CHECK_THROWS_AS(model(from_values<std::int32_t>({-1}, {1, 1})), Error);
  CHECK_THROWS_AS(model.loss(random_ids({1, 4}, 11, 1), random_ids({1, 3}, 11, 1)), Error);
  Gpt::Cache cache = model.make_cache(1);
  model.extend(random_ids({1, 12}, 11, 1), cache);
  CHECK_THROWS_AS(model.extend(random_ids({1, 1}, 11, 1), cache), Error);
  CHECK(cache.length == 12);
  CHECK_THROWS_AS(model.make_cache(0), Error);
  Gpt::Cache none;
  CHECK_THROWS_AS(model.extend(random_ids({1, 1}, 11, 1), none), Error);
}

TEST_CASE("forward, backward and step allocate nothing after two steps, alone or with threads") {
  for (const int threads : {1, 2}) {
    for (const double dropout : {0.0, 0.1}) {
      set_num_threads(threads);
      Gpt model({.vocabulary = 65, .context = 64, .layers = 2, .heads = 4, .width = 128, .dropout = dropout}, 20);
      AdamW optimizer(parameters(model));
      const Tensor tokens = random_ids({4, 64}, 65, 21), targets = random_ids({4, 64}, 65, 22);
      const auto step = [&] {
        backward(model, tokens, targets);
        optimizer.step({.lr = 1e-3, .clip_norm = 1});
      };
      step();
      step();
      const std::int64_t heap = heap_allocations, system = memory_stats().system_requests;
      for (int i = 0; i < 3; ++i) step();
      CHECK(heap_allocations - heap == 0);
      CHECK(memory_stats().system_requests - system == 0);
    }
  }
  set_num_threads(0);
}

TEST_CASE("a tiny GPT learns one batch by heart") {
  for (const NormPlacement norm : {NormPlacement::pre, NormPlacement::post}) {
    GptConfig config = tiny();
    config.norm = norm;
    config.width = 32;
    Gpt model(config, 5);
    AdamW optimizer(parameters(model), {.weight_decay = 0});
    const Tensor tokens = random_ids({4, 12}, 11, 23), targets = random_ids({4, 12}, 11, 24);
    double loss = backward(model, tokens, targets);
    CHECK(loss > 2);
    for (int i = 0; i < 300; ++i) {
      optimizer.step({.lr = 3e-3, .clip_norm = 1});
      loss = backward(model, tokens, targets);
    }
    CHECK(loss < 0.02);
  }
}

TEST_CASE("slow: GPT-2 124M has its size, and runs") {
  const GptConfig config{.vocabulary = 50257, .context = 1024, .layers = 12, .heads = 12, .width = 768};
  Gpt model(config, 1);
  CHECK(parameter_count(model) == 124439808);
  model.eval();
  const Tensor tokens = random_ids({1, 1}, 50257, 1);
  const Tensor logits = model(tokens).value();
  CHECK(logits.shape() == Shape{1, 1, 50257});
  CHECK(max_abs(logits) > 0);
  CHECK(max_abs(logits) < 10);
  Gpt::Cache cache = model.make_cache(1);
  CHECK(relative_error(model.extend(tokens, cache), logits.reshape({1, 50257})) < 1e-5);
}

TEST_CASE("slow: width 1600 and vocabulary 50257 train on one token") {
  Gpt model({.vocabulary = 50257, .context = 1, .layers = 1, .heads = 25, .width = 1600}, 2);
  const Tensor token = from_values<std::int32_t>({50256}, {1, 1});
  check_all_gradients(model, token, from_values<std::int32_t>({0}, {1, 1}));
}
