// Trainer: exact resume, exact weighting of micro-batches, evaluation, stopping, and what happens when a step fails.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "autograd/ops.h"
#include "core/parallel.h"
#include "core/random.h"
#include "optim/trainer.h"
#include "tests/allocation_counter.h"
#include "tests/fault_injection.h"

using namespace tapestry;

namespace {

constexpr std::int64_t kIn = 7, kHidden = 33, kClasses = 5, kRows = 12;
constexpr std::int64_t kIgnored = -100;

Parameter random_parameter(const Shape& shape, Rng& rng) {
  Tensor value = empty(shape);
  fill_normal(value, 0, 0.3, rng.next());
  return Parameter(value);
}

// Two layers with dropout between them.
class Net : public Module {
 public:
  explicit Net(std::uint64_t seed, double p = 0.2) : dropout_p(p), rng_(seed) {
    up = random_parameter({kIn, kHidden}, rng_);
    down = random_parameter({kHidden, kClasses}, rng_);
  }
  Var operator()(const Tensor& x) const {
    Var h = gelu_tanh(linear(Var(x), up, bias));
    if (training()) h = dropout(h, dropout_p, next_random_key());
    return linear(h, down);
  }
  void visit(Visitor& v) override {
    v("up", up);
    v("bias", bias);
    v("down", down);
    if (unused) v("unused", *unused);
  }

  Parameter up{Shape{1}}, bias{Shape{kHidden}}, down{Shape{1}};
  std::unique_ptr<Parameter> unused;
  double dropout_p;

 private:
  Rng rng_;
};

// Micro-batch i: random inputs, targets that depend on them, and `ignored(i)` rows without a target.
struct Data {
  std::int64_t rows = kRows;
  std::function<std::int64_t(std::int64_t)> ignored = [](std::int64_t) { return 0; };

  Tensor inputs(std::int64_t i) const {
    Tensor x = empty({rows, kIn});
    fill_normal(x, 0, 1, {99, static_cast<std::uint64_t>(i)});
    return x;
  }
  Tensor targets(std::int64_t i, const Tensor& x) const {
    Tensor t = empty({rows}, DType::i64);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = x.data<float>() + r * kIn;
      std::int64_t best = 0;
      for (std::int64_t c = 1; c < kClasses; ++c)
        if (row[c] > row[best]) best = c;
      t.mutable_data<std::int64_t>()[r] = r < ignored(i) ? kIgnored : best;
    }
    return t;
  }
  LossResult loss(const Net& net, std::int64_t i) const {
    const Tensor x = inputs(i);
    const CrossEntropy result = cross_entropy(net(x), targets(i, x), kIgnored);
    return {result.loss, result.valid_tokens};
  }
};

// A model with its optimizer and trainer, as a program would make them.
struct Run {
  Run(std::uint64_t seed, TrainerOptions options, Data d = {}, double dropout = 0.2)
      : net(seed, dropout), data(std::move(d)), optimizer(parameters(net), {.weight_decay = 0.1}) {
    functions.micro_loss = [this](std::int64_t i) {
      if (i == fail_at) fail("no data");
      return data.loss(net, i);
    };
    functions.valid_tokens = [this](std::int64_t i) { return data.rows - data.ignored(i); };
    functions.on_step = [this](const StepInfo& info) { steps.push_back(info); };
    functions.on_eval = [this](std::int64_t step, double loss) { evals.emplace_back(step, loss); };
    if (options.clip_norm == 0) options.clip_norm = 1;
    opts = options;
  }
  Trainer& trainer() {
    if (!trainer_)
      trainer_ = std::make_unique<Trainer>(net, optimizer, warmup(3, cosine(0.02, 0.001, 30)), opts, functions);
    return *trainer_;
  }
  std::vector<double> losses() const {
    std::vector<double> result;
    for (const StepInfo& info : steps) result.push_back(info.loss);
    return result;
  }

  Net net;
  Data data;
  AdamW optimizer;
  TrainerOptions opts;
  Trainer::Functions functions;
  std::int64_t fail_at = -1;
  std::vector<StepInfo> steps;
  std::vector<std::pair<std::int64_t, double>> evals;

 private:
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace

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
  CHECK(has(message_of([&] { run.trainer().run(); }), "10 steps in a row were not finite: now the loss is nan"));
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
