// Frozen parameters: constants on the tape, without a gradient, left alone by optimizers.
#include <doctest/doctest.h>

#include "layers/activation.h"
#include "layers/linear.h"
#include "layers/sequential.h"
#include "optim/adam.h"
#include "tests/compare.h"

using namespace tapestry;

namespace {

Sequential network() {
  Rng rng(1);
  return Sequential{Linear(3, 4, rng), ActivationLayer(Activation::tanh), Linear(4, 2, rng)};
}

void backward_of(Sequential& net) {
  Tape tape;
  tape.backward(sum(square(net(random_normal({5, 3}, 1)))));
}

}  // namespace

TEST_CASE("a frozen parameter records nothing and loses its gradient") {
  Sequential net = network();
  backward_of(net);
  for (const NamedParameter& p : parameters(net)) CHECK(p.parameter->has_grad());
  freeze(net);
  for (const NamedParameter& p : parameters(net)) {
    CHECK_FALSE(p.parameter->trainable());
    CHECK_FALSE(p.parameter->has_grad());
  }
  Tape tape;
  CHECK_FALSE(net(random_normal({5, 3}, 1)).tracked());
  CHECK(tape.size() == 0);
  CHECK(tape.touched_parameters().empty());
}

TEST_CASE("gradients of the others are those without freezing, and flow through frozen layers") {
  Sequential net = network(), partly = network();
  backward_of(net);
  freeze(partly[2]);
  backward_of(partly);
  const auto all = parameters(net), some = parameters(partly);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i].name);
    const bool frozen = all[i].name.front() == '2';
    CHECK(some[i].parameter->has_grad() == !frozen);
    if (!frozen) CHECK(same_bits(some[i].parameter->grad(), all[i].parameter->grad()));
  }
  unfreeze(partly);
  zero_grad(partly);
  backward_of(partly);
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(same_bits(some[i].parameter->grad(), all[i].parameter->grad()));
}

TEST_CASE("an optimizer leaves frozen parameters alone, weight decay included") {
  Sequential net = network();
  freeze(net[0]);
  AdamW optimizer(parameters(net), {.weight_decay = 0.5});
  std::vector<Tensor> before;
  for (const NamedParameter& p : parameters(net)) before.push_back(p.parameter->value().clone());
  auto changed = [&](std::size_t i) { return !same_bits(parameters(net)[i].parameter->value(), before[i]); };
  backward_of(net);
  optimizer.step({.lr = 0.1});
  CHECK_FALSE(changed(0));
  CHECK_FALSE(changed(1));
  CHECK(changed(2));
  CHECK(changed(3));
  unfreeze(net);
  backward_of(net);
  optimizer.step({.lr = 0.1});
  CHECK(changed(0));
}

TEST_CASE("freezing between backward and step discards the gradient") {
  Sequential net = network();
  AdamW optimizer(parameters(net), {});
  backward_of(net);
  freeze(net[0]);
  const Tensor before = parameters(net)[0].parameter->value().clone();
  optimizer.step({.lr = 0.1});
  CHECK(same_bits(parameters(net)[0].parameter->value(), before));
}

TEST_CASE("clones stay frozen, ties share the mark") {
  Parameter a(Shape{2}), b(Shape{2});
  a.set_trainable(false);
  CHECK_FALSE(a.clone().trainable());
  tie(a, b);
  CHECK_FALSE(b.trainable());
  b.set_trainable(true);
  CHECK(a.trainable());
}
