// Trainer: what happens when a step fails, and what it refuses.
#include <cmath>
#include <limits>

#include "tests/error_message.h"
#include "tests/trainer_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

TEST_CASE("without valid_tokens micro-batches must be equal, and what it says is checked") {
  Run run(1, {.accumulate = 2}, {.ignored = [](std::int64_t i) { return i; }});
  run.functions.valid_tokens = nullptr;
  CHECK(has(message_of([&] { run.trainer().step(); }), "give Functions::valid_tokens"));

  Run wrong(1, {.accumulate = 2});
  wrong.functions.valid_tokens = [](std::int64_t) { return kRows + 1; };
  CHECK(has(message_of([&] { wrong.trainer().step(); }), "valid_tokens(0) is 13, but micro_loss counted 12"));
}

TEST_CASE("N08 a window without any target leaves no NaN") {
  Run run(1, {.accumulate = 2}, {.ignored = [](std::int64_t) { return kRows; }});
  const StepInfo info = run.trainer().step();
  CHECK(info.loss == 0);
  CHECK(info.grad_norm == 0);
  CHECK(info.tokens == 0);
  CHECK_FALSE(info.skipped);
  for (const NamedParameter& p : parameters(run.net))
    for (std::int64_t i = 0; i < p.parameter->numel(); ++i) CHECK(std::isfinite(p.parameter->value().at(i)));
}

TEST_CASE("a parameter that visit() does not reach is found in the first step") {
  Run run(1, {});
  Parameter forgotten(Shape{kIn});
  run.functions.micro_loss = [&](std::int64_t i) {
    LossResult result = run.data.loss(run.net, i);
    result.loss = result.loss + sum(Var(forgotten));
    return result;
  };
  CHECK(has(message_of([&] { run.trainer().step(); }), "missing: [7]"));
}

TEST_CASE("a loss that is not finite skips the step, ten in a row throw") {
  Run run(1, {.max_steps = 30});
  std::int64_t bad_from = 2, bad_to = 4;
  run.functions.micro_loss = [&](std::int64_t i) {
    LossResult result = run.data.loss(run.net, i);
    if (i >= bad_from && i < bad_to) result.loss = result.loss + Var(scalar(std::numeric_limits<double>::quiet_NaN()));
    return result;
  };
  for (int i = 0; i < 2; ++i) CHECK_FALSE(run.trainer().step().skipped);
  const std::string hash = weights_hash(run.net);
  // The gradients of this loss are finite, but it is no loss to follow.
  const StepInfo info = run.trainer().step();
  CHECK(info.skipped);
  CHECK(std::isnan(info.loss));
  CHECK(run.trainer().step().skipped);
  CHECK(weights_hash(run.net) == hash);
  CHECK_FALSE(run.trainer().step().skipped);
  bad_to = 1000;
  CHECK(has(message_of([&] { run.trainer().run(); }),
            "10 steps in a row were skipped, now because the loss is not finite: the loss is nan"));
}

TEST_CASE("a failure in the forward keeps the window, one in the backward begins it anew") {
  const TrainerOptions options{.max_steps = 4, .accumulate = 3};
  Run unbroken(1, options);
  unbroken.trainer().run();

  Run forward(1, options);
  forward.fail_at = 4;
  CHECK(has(message_of([&] { forward.trainer().run(); }), "no data"));
  forward.fail_at = -1;
  forward.trainer().run();
  CHECK(weights_hash(forward.net) == weights_hash(unbroken.net));
  CHECK(forward.losses() == unbroken.losses());

  Run backward(1, options);
  bool broken = true;
  backward.functions.micro_loss = [&](std::int64_t i) {
    LossResult result = backward.data.loss(backward.net, i);
    if (i == 4 && broken) Tape::current()->hook(result.loss, [](const Tensor&) { fail("broken hook"); });
    return result;
  };
  CHECK(has(message_of([&] { backward.trainer().run(); }), "broken hook"));
  broken = false;
  backward.trainer().run();
  CHECK(weights_hash(backward.net) == weights_hash(unbroken.net));
  CHECK(backward.losses() == unbroken.losses());
}

TEST_CASE("a step that throws ends its window") {
  Run run(1, {.accumulate = 2});
  const std::string before = weights_hash(run.net);
  double rate = -1;
  Trainer trainer(
      run.net, run.optimizer, [&](std::int64_t) { return rate; }, run.opts, run.functions);
  CHECK(has(message_of([&] { trainer.step(); }), "AdamW.step: lr must be"));
  CHECK_FALSE(run.net.up.has_grad());
  CHECK(weights_hash(run.net) == before);
  CHECK(trainer.current_step() == 0);
  rate = 0.1;
  CHECK(trainer.step().tokens == 2 * kRows);
}

TEST_CASE("a visited parameter that the loss does not use stays as it is") {
  Run run(1, {.max_steps = 3});
  Net net(1);
  net.unused = std::make_unique<Parameter>(full({4, 4}, 1));
  AdamW optimizer(parameters(net), {.weight_decay = 0.5});
  Trainer trainer(net, optimizer, constant(0.1), {.max_steps = 3},
                  {.micro_loss = [&](std::int64_t i) { return run.data.loss(net, i); }});
  trainer.run();
  CHECK(same_bits(net.unused->value(), full({4, 4}, 1)));
}

TEST_CASE("wrong options throw") {
  Net net(1);
  AdamW optimizer(parameters(net));
  const Trainer::Functions functions{.micro_loss = [](std::int64_t) { return LossResult{}; }};
  auto make = [&](const TrainerOptions& options) { Trainer(net, optimizer, constant(0.1), options, functions); };
  CHECK_THROWS_AS(make({.max_steps = -1}), Error);
  CHECK_THROWS_AS(make({.accumulate = 0}), Error);
  CHECK_THROWS_AS(make({.clip_norm = -1}), Error);
  CHECK_THROWS_AS(make({.eval_every = -1}), Error);
  CHECK_THROWS_AS(make({.time_budget_seconds = -1}), Error);
  CHECK_THROWS_AS(Trainer(net, optimizer, nullptr, {}, functions), Error);
  CHECK_THROWS_AS(Trainer(net, optimizer, constant(0.1), {}, {}), Error);
}
