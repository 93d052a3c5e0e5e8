// Writing text: how a token is drawn from logits, and that the key-value cache changes nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "layers/models/generate.h"
#include "tests/compare.h"

using namespace tapestry;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

GptConfig small() { return {.vocabulary = 13, .context = 8, .layers = 2, .heads = 2, .width = 16, .dropout = 0.3}; }

// GPT-2's init gives nearly equal logits; larger weights make every token matter.
Gpt lively(const GptConfig& config) {
  Gpt model(config, 3);
  for (const NamedParameter& p : parameters(model))
    if (p.name.ends_with("embedding.weight")) fill_normal(p.parameter->mutable_value(), 0, 1, RandomKey{7, 1});
  return model;
}

std::vector<std::int32_t> written(Gpt& model, const std::vector<std::int32_t>& prompt, std::int64_t count,
                                  const SamplingOptions& options) {
  std::vector<std::int32_t> ids;
  generate(model, prompt, count, options, [&](std::int32_t id) {
    ids.push_back(id);
    return true;
  });
  return ids;
}

// The logits after the last of `tokens`, by a forward pass over all of them.
std::vector<float> plain_logits(Gpt& model, std::span<const std::int32_t> tokens) {
  const EvalScope eval_scope(model);
  const auto length = static_cast<std::int64_t>(tokens.size());
  const Tensor all = model(from_span(tokens, {1, length})).value();
  const float* last = all.data<float>() + (length - 1) * all.shape().back();
  return {last, last + all.shape().back()};
}

std::int32_t greedy(const std::vector<float>& logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Shares of the tokens over `draws` evenly spread values of `uniform`.
std::vector<double> shares(const std::vector<float>& logits, const SamplingOptions& options, int draws = 20000) {
  std::vector<double> result(logits.size());
  for (int i = 0; i < draws; ++i)
    result[static_cast<std::size_t>(sample_token(logits, options, (i + 0.5) / draws))] += 1.0 / draws;
  return result;
}

std::vector<double> softmax_of(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  for (float z : logits) p.push_back(std::exp(z / temperature));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

}  // namespace

TEST_CASE("sample_token follows softmax(logits / temperature)") {
  const std::vector<float> logits = {0.3f, -1.2f, 2.0f, 0.3f, -3.0f, 1.1f};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    const std::vector<double> expected = softmax_of(logits, temperature),
                              got = shares(logits, {.temperature = temperature});
    for (std::size_t i = 0; i < logits.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < 1e-4);
  }
  // Adding a constant changes nothing, at any size that keeps the differences.
  CHECK(shares({1000, 1001}, {}) == shares({0, 1}, {}));
}

TEST_CASE("sample_token: drawn by Philox, within four standard deviations") {
  const std::vector<float> logits = {1.0f, 0.0f, -1.0f, 0.5f};
  const std::vector<double> expected = softmax_of(logits, 1);
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size());
  const RandomKey key{5, 0};
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sample_token(logits, {}, key.uniform(i)))];
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double deviation = std::sqrt(kDraws * expected[i] * (1 - expected[i]));
    CHECK(std::abs(counts[i] - kDraws * expected[i]) < 4 * deviation);
  }
}

TEST_CASE("sample_token: greedy is temperature 0, top_k 1 and a tiny top_p; ties go to the lower id") {
  const std::vector<float> logits = {0.5f, 3.0f, -1.0f, 3.0f, 2.9f};
  for (const double uniform : {0.0, 0.3, 0.999999}) {
    CHECK(sample_token(logits, {.temperature = 0}, uniform) == 1);
    CHECK(sample_token(logits, {.top_k = 1}, uniform) == 1);
    CHECK(sample_token(logits, {.top_p = 1e-12}, uniform) == 1);
    CHECK(sample_token(logits, {.temperature = 1e-6, .top_k = 1}, uniform) == 1);
  }
  std::vector<float> many(100, 1.0f);
  many[17] = 0.5f;
  CHECK(sample_token(many, {.top_k = 1}, 0.9) == 0);
  CHECK(sample_token(many, {.top_k = 50}, 0.999) == 50);  // the tokens 0 to 50 but 17
  CHECK(sample_token(std::vector<float>{4}, {}, 0.9) == 0);
}

TEST_CASE("sample_token: top_k and top_p keep the likeliest and their proportions") {
  const std::vector<float> logits = {0.0f, std::log(4.0f), std::log(2.0f), std::log(1.0f), std::log(8.0f)};
  // Probabilities are 1, 4, 2, 1, 8 sixteenths.
  const auto check = [&](const SamplingOptions& options, const std::vector<double>& expected) {
    const std::vector<double> got = shares(logits, options);
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < 1e-3);
  };
  check({.top_k = 2}, {0, 4. / 12, 0, 0, 8. / 12});
  check({.top_k = 4}, {1. / 15, 4. / 15, 2. / 15, 0, 8. / 15});
  check({.top_k = 99}, {1. / 16, 4. / 16, 2. / 16, 1. / 16, 8. / 16});
  check({.top_p = 0.49}, {0, 0, 0, 0, 1});
  check({.top_p = 0.6}, {0, 4. / 12, 0, 0, 8. / 12});
  check({.top_p = 0.8}, {0, 4. / 14, 2. / 14, 0, 8. / 14});
  // top_p counts within what top_k left: 8/12 reaches 0.6 alone.
  check({.top_k = 2, .top_p = 0.6}, {0, 0, 0, 0, 1});
}

TEST_CASE("sample_token: hidden tokens are never drawn, damaged logits are refused") {
  CHECK(shares({-kInfinity, 0, -kInfinity, 0}, {}, 64) == std::vector<double>{0, 0.5, 0, 0.5});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity})
    for (const double temperature : {0.0, 1.0})
      CHECK_THROWS_AS(sample_token(std::vector<float>{0, bad}, {.temperature = temperature}, 0.5), Error);
  CHECK_THROWS_AS(sample_token(std::vector<float>{-kInfinity, -kInfinity}, {}, 0.5), Error);
  CHECK_THROWS_AS(sample_token(std::vector<float>{}, {}, 0.5), Error);
}

TEST_CASE("sampling options: ranges") {
  for (const SamplingOptions& bad : {SamplingOptions{.temperature = -1},
                                     {.temperature = NAN},
                                     {.temperature = INFINITY},
                                     {.top_k = -1},
                                     {.top_p = 0},
                                     {.top_p = 1.01},
                                     {.top_p = NAN}})
    CHECK_THROWS_AS(bad.check(), Error);
  CHECK_NOTHROW(SamplingOptions{.temperature = 0}.check());
}

TEST_CASE("key-value cache: logits equal the plain forward's, however the tokens are fed") {
  const GptConfig config = small();
  Gpt model = lively(config);
  model.eval();
  const Tensor tokens = random_ids({8}, config.vocabulary, 4);
  const std::span<const std::int32_t> ids(tokens.data<std::int32_t>(), 8);
  for (const std::vector<std::int64_t>& pieces :
       {std::vector<std::int64_t>{1, 1, 1, 1, 1, 1, 1, 1}, {8}, {3, 1, 4}, {7, 1}, {1, 7}}) {
    Gpt::Cache cache = model.make_cache(1);
    std::int64_t end = 0;
    for (const std::int64_t piece : pieces) {
      const Tensor got = model.extend(
          from_span(ids.subspan(static_cast<std::size_t>(end), static_cast<std::size_t>(piece)), {1, piece}), cache);
      end += piece;
      const std::vector<float> expected = plain_logits(model, ids.first(static_cast<std::size_t>(end)));
      const Tensor reference = from_span(std::span<const float>(expected), {1, config.vocabulary});
      CHECK(relative_error(got, reference) < 1e-5);
      CHECK(max_abs(reference) > 1);
    }
  }
}

TEST_CASE("generate: at temperature 0 the text of a loop over plain forwards") {
  Gpt model = lively(small());
  std::vector<std::int32_t> text = {2, 9, 4};
  const std::vector<std::int32_t> got = written(model, text, 6, {.temperature = 0});
  REQUIRE(got.size() == 6);  // the last one comes from a context that is just full
  for (const std::int32_t id : got) {
    CHECK(id == greedy(plain_logits(model, text)));
    text.push_back(id);
  }
  CHECK(std::adjacent_find(got.begin(), got.end(), std::not_equal_to<>()) != got.end());
  CHECK(model.training());  // as before
  model.blocks[1].eval();
  written(model, text, 1, {});
  CHECK(model.blocks[0].training());
  CHECK(!model.blocks[1].training());
}

TEST_CASE("generate: beyond the context it goes on from the second half") {
  for (const std::int64_t context : {1, 2, 3, 8}) {
    GptConfig config = small();
    config.context = context;
    Gpt model = lively(config);
    const std::vector<std::int32_t> prompt = {2, 9, 4, 1, 1, 7, 3, 12, 5, 0, 6};  // longer than any of the contexts
    std::vector<std::int32_t> text = prompt;
    std::size_t begin = text.size() - static_cast<std::size_t>(context);
    for (const std::int32_t id : written(model, prompt, 30, {.temperature = 0})) {
      if (text.size() - begin > static_cast<std::size_t>(context))
        begin = text.size() - static_cast<std::size_t>(std::max<std::int64_t>(1, context / 2));
      CHECK(id == greedy(plain_logits(model, std::span(text).subspan(begin))));
      text.push_back(id);
    }
    CHECK(text.size() == prompt.size() + 30);
  }
}

TEST_CASE("generate: the seed decides, a token can end it, mistakes are refused") {
  Gpt model = lively(small());
  const std::vector<std::int32_t> prompt = {1, 2};
  CHECK(written(model, prompt, 40, {.seed = 1}) == written(model, prompt, 40, {.seed = 1}));
  CHECK(written(model, prompt, 40, {.seed = 1}) != written(model, prompt, 40, {.seed = 2}));
  CHECK(written(model, prompt, 0, {}).empty());
  int calls = 0;
  generate(model, prompt, 40, {}, [&](std::int32_t) { return ++calls < 3; });
  CHECK(calls == 3);

  model.eval();
  written(model, prompt, 1, {});
  CHECK(!model.training());
  CHECK_THROWS_AS(written(model, {}, 1, {}), Error);
  CHECK_THROWS_AS(written(model, prompt, -1, {}), Error);
  CHECK_THROWS_AS(written(model, prompt, 1, {.temperature = -1}), Error);
  CHECK_THROWS_AS(written(model, {13}, 1, {}), Error);
}
