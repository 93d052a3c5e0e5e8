// Trainer: exact resume, exact weighting of micro-batches, evaluation, stopping, bits and allocations.
#include <cmath>

#include "core/parallel.h"
#include "tests/allocation_counter.h"
#include "tests/fault_injection.h"
#include "tests/trainer_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

TEST_CASE("F01 bit-exact resume") {
  const TrainerOptions options{.max_steps = 20, .accumulate = 3, .seed = 5};
  const Data data{.ignored = [](std::int64_t i) { return i % 4; }};
  Run unbroken(1, options, data);
  CHECK(unbroken.trainer().run() == Trainer::Stop::finished);
  const std::string hash = weights_hash(unbroken.net);
  CHECK(unbroken.losses().back() < unbroken.losses().front());

  const TemporaryFolder folder;
  const std::string path = folder / "resume.h5";
  // 30 micro-batches end a window, 31 and 32 lie inside one.
  for (const int micro_steps : {30, 31, 32}) {
    CAPTURE(micro_steps);
    Run first(1, options, data);
    for (int i = 0; i < 10; ++i) first.steps.push_back(first.trainer().step());
    for (int i = 30; i < micro_steps; ++i) first.trainer().micro_step();
    first.trainer().save(path, {.config = {{"name", "net"}}});

    Run second(2, {.max_steps = 20, .accumulate = 3}, data);
    CHECK(second.trainer().load(path).config.at("name") == "net");
    CHECK(second.trainer().current_step() == 10);
    CHECK(second.trainer().run() == Trainer::Stop::finished);
    CHECK(weights_hash(second.net) == hash);
    std::vector<double> losses = first.losses();
    for (const double loss : second.losses()) losses.push_back(loss);
    CHECK(losses == unbroken.losses());

    // Saving has changed nothing.
    first.trainer().run();
    CHECK(weights_hash(first.net) == hash);
  }
}

TEST_CASE("a state that does not fit the trainer is refused before anything changes") {
  const TemporaryFolder folder;
  const std::string path = folder / "window.h5";
  Run first(1, {.max_steps = 4, .accumulate = 3});
  first.trainer().micro_step();
  first.trainer().save(path);
  Run second(2, {.max_steps = 4, .accumulate = 2});
  const std::string before = weights_hash(second.net);
  CHECK(has(message_of([&] { second.trainer().load(path); }), "accumulate must be 3, not 2"));
  save_training_state(path, first.net, &first.optimizer, {});
  CHECK(has(message_of([&] { second.trainer().load(path); }), "it has no counter step"));
  CHECK(weights_hash(second.net) == before);
  CHECK(second.trainer().current_step() == 0);
}

TEST_CASE("unequal micro-batches equal one batch") {
  // Micro-batch i has 3 (i % 4) rows without target; the one batch holds the rows of four micro-batches.
  const Data parts{.ignored = [](std::int64_t i) { return 3 * (i % 4); }};
  Run accumulated(1, {.accumulate = 4}, parts, 0), whole(1, {}, {}, 0);
  whole.functions.valid_tokens = nullptr;
  whole.functions.micro_loss = [&](std::int64_t step) {
    Tensor x = empty({4 * kRows, kIn}), t = empty({4 * kRows}, DType::i64);
    for (std::int64_t i = 0; i < 4; ++i) {
      const Tensor part = parts.inputs(4 * step + i);
      x.rows(i * kRows, kRows).copy_from(part);
      t.rows(i * kRows, kRows).copy_from(parts.targets(4 * step + i, part));
    }
    const CrossEntropy result = cross_entropy(whole.net(x), t, kIgnored);
    return LossResult{result.loss, result.valid_tokens};
  };
  for (int i = 0; i < 4; ++i) accumulated.trainer().micro_step();
  whole.trainer().micro_step();
  const auto few = parameters(accumulated.net), one = parameters(whole.net);
  for (std::size_t p = 0; p < few.size(); ++p)
    for (std::int64_t i = 0; i < few[p].parameter->numel(); ++i)
      CHECK(std::abs(few[p].parameter->grad().at(i) - one[p].parameter->grad().at(i)) < 1e-6);

  const StepInfo a = accumulated.trainer().step(), b = whole.trainer().step();
  CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-6));
  CHECK(a.grad_norm == doctest::Approx(b.grad_norm).epsilon(1e-6));
  CHECK(a.tokens == 4 * kRows - 18);
  CHECK(a.tokens == b.tokens);
  CHECK(a.lr == doctest::Approx(0.02 / 3));
}

TEST_CASE("the same bits with 1, 2 and 3 threads") {
  std::string hash;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Run run(1, {.max_steps = 6, .accumulate = 2, .seed = 3}, {.rows = 500});
    run.trainer().run();
    if (hash.empty()) hash = weights_hash(run.net);
    CHECK(weights_hash(run.net) == hash);
  }
  set_num_threads(0);
  Run other(1, {.max_steps = 6, .accumulate = 2, .seed = 4}, {.rows = 500});
  other.trainer().run();
  CHECK(weights_hash(other.net) != hash);
}

TEST_CASE("evaluation: when, in which mode, and without effect on the run") {
  Run run(1, {.max_steps = 7, .eval_every = 3});
  run.functions.evaluate = [&] {
    CHECK_FALSE(run.net.training());
    CHECK(Tape::current() == nullptr);
    next_random_key();
    return static_cast<double>(run.trainer().current_step()) / 2;
  };
  run.trainer().run();
  CHECK(run.evals == std::vector<std::pair<std::int64_t, double>>{{3, 1.5}, {6, 3}, {7, 3.5}});
  CHECK(run.net.training());
  Run quiet(1, {.max_steps = 7});
  quiet.trainer().run();
  CHECK(weights_hash(quiet.net) == weights_hash(run.net));

  SUBCASE("the end is evaluated once") {
    Run even(1, {.max_steps = 6, .eval_every = 3});
    even.functions.evaluate = [] { return 0.0; };
    even.trainer().run();
    CHECK(even.evals.size() == 2);
  }
  SUBCASE("a part that was in eval mode stays there, also after an exception") {
    class Pair : public Module {
     public:
      Net a{1}, b{2};
      void visit(Visitor& v) override { v("a", a), v("b", b); }
    } pair;
    pair.b.eval();
    AdamW optimizer(parameters(pair));
    Trainer trainer(pair, optimizer, constant(0.1), {},
                    {.micro_loss = [](std::int64_t) { return LossResult{}; },
                     .evaluate = [&]() -> double {
                       CHECK_FALSE(pair.a.training());
                       fail("no validation data");
                     }});
    CHECK_THROWS_AS(trainer.run(), Error);
    CHECK(pair.training());
    CHECK(pair.a.training());
    CHECK_FALSE(pair.b.training());
    CHECK(Tape::current() == nullptr);
  }
}

TEST_CASE("stopping: interrupt, time budget, end") {
  Run run(1, {.max_steps = 5});
  run.functions.on_step = [&](const StepInfo& info) {
    run.steps.push_back(info);
    if (info.step == 2) run.trainer().interrupt();
  };
  CHECK(run.trainer().run() == Trainer::Stop::interrupted);
  CHECK(run.trainer().current_step() == 2);
  CHECK(run.trainer().run() == Trainer::Stop::finished);
  CHECK(run.trainer().run() == Trainer::Stop::finished);
  CHECK(run.steps.size() == 5);
  CHECK(run.steps.back().seconds > 0);

  Run limited(1, {.max_steps = 1000000, .time_budget_seconds = 1e-9});
  CHECK(limited.trainer().run() == Trainer::Stop::time_budget);
  CHECK(limited.trainer().current_step() == 0);
  Run unlimited(1, {.max_steps = 2, .time_budget_seconds = 1e9});
  CHECK(unlimited.trainer().run() == Trainer::Stop::finished);
}

TEST_CASE("a step allocates nothing from the third on") {
  Run run(1, {.accumulate = 2});
  std::vector<Tensor> inputs, targets;
  for (std::int64_t i = 0; i < 12; ++i) {
    inputs.push_back(run.data.inputs(i));
    targets.push_back(run.data.targets(i, inputs.back()));
  }
  run.functions.micro_loss = [&](std::int64_t i) {
    const auto k = static_cast<std::size_t>(i);
    const CrossEntropy result = cross_entropy(run.net(inputs[k]), targets[k], kIgnored);
    return LossResult{result.loss, result.valid_tokens};
  };
  for (int i = 0; i < 2; ++i) run.trainer().step();
  const std::int64_t system_requests = memory_stats().system_requests, before = heap_allocations;
  for (int i = 0; i < 4; ++i) run.trainer().step();
  CHECK(heap_allocations == before);
  CHECK(memory_stats().system_requests == system_requests);
}
