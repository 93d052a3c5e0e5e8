// summary(): the text as it stands, ties, frozen parameters, buffers, FLOPs.
#include "layers/summary.h"

#include <doctest/doctest.h>

#include "layers/activation.h"
#include "layers/batchnorm.h"
#include "layers/linear.h"
#include "layers/models/gpt.h"
#include "layers/sequential.h"

using namespace tapestry;

namespace {

// The line that begins with `name`, its runs of spaces made one.
std::string line_of(const std::string& text, const std::string& name) {
  std::string squeezed;
  for (const char c : "\n" + text)
    if (c != ' ' || (squeezed.back() != ' ' && squeezed.back() != '\n')) squeezed += c;
  const std::size_t begin = squeezed.find("\n" + name + " ");
  if (begin == std::string::npos) return "no line " + name;
  return squeezed.substr(begin + 1, squeezed.find('\n', begin + 1) - begin - 1);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the tree of a small model") {
  Rng rng(1);
  Sequential net{Linear(2, 16, rng), BatchNorm1d(16), ActivationLayer(Activation::tanh), Linear(16, 1, rng)};
  freeze(net[3]);
  const std::string text = summary(net);
  INFO(text);
  CHECK(line_of(text, "Sequential") == "Sequential 97 388 B 96");
  CHECK(line_of(text, "0") == "0 Linear 48 192 B 64");
  CHECK(line_of(text, "weight") == "weight [2, 16] 32 128 B");
  CHECK(line_of(text, "1") == "1 BatchNorm1d 32 128 B");
  CHECK(line_of(text, "running_mean") == "running_mean [16] buffer");
  CHECK(line_of(text, "2") == "2 tanh");
  CHECK(contains(text, "frozen\n"));
  CHECK(contains(text, "parameters 97 (80 trainable, 17 frozen), 388 B\n"));
  CHECK(contains(text, "buffers 32, 128 B\n"));
  CHECK(contains(text, "forward 96 FLOPs per token\n"));
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', end + 1))
    CHECK(text[end - 1] != ' ');
}

TEST_CASE("a tied parameter counts once") {
  Rng rng(1);
  Sequential net{Linear(40, 40, rng, false), Linear(40, 40, rng, false)};
  tie(static_cast<Linear&>(net[0]).weight, static_cast<Linear&>(net[1]).weight);
  const std::string text = summary(net);
  INFO(text);
  CHECK(line_of(text, "Sequential") == "Sequential 1,600 6.3 KiB 6,400");
  CHECK(contains(text, "tied to 0.weight"));
  CHECK(contains(text, "parameters 1,600 (1,600 trainable, 0 frozen), 6.3 KiB\n"));
}

TEST_CASE("totals of a GPT are those of parameters(), its FLOPs those of its products") {
  for (const bool tied : {true, false}) {
    Gpt gpt({.vocabulary = 11, .context = 6, .layers = 2, .heads = 2, .width = 4, .tied_head = tied}, 1);
    const std::string text = summary(gpt);
    INFO(text);
    CHECK(contains(text, text_of("parameters ", parameter_count(gpt), " (")));
    // Twice 2 blocks of 12 width^2 weights and of scores and sums over 6 keys, and the head: 2 * 2 * (192 + 48) + 2 * 44.
    CHECK(contains(text, "forward 1,048 FLOPs"));
    CHECK(line_of(text, "blocks.1").starts_with("blocks.1 Block"));
  }
}
