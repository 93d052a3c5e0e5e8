// The protocol of scale, backward, unscale, clip, step and update: every misuse, several optimizers, outliers, and the
// Trainer that follows it, with exact resume.
#include <cmath>

#include "optim/outlier_filter.h"
#include "tests/error_message.h"
#include "tests/fault_injection.h"
#include "tests/scaler_testing.h"
#include "tests/trainer_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

TEST_CASE("misuse of the protocol throws and says the fix") {
  Setup s;
  const auto step = [&] { s.optimizer.step({.lr = 1, .scaler = &s.scaler}); };
  const auto plain_step = [&] { s.optimizer.step({.lr = 1}); };
  check_error(step, {"Sgd.step: no parameter has a gradient; call backward first"});
  check_error([&] { s.scaler.unscale(s.optimizer); }, {"GradScaler.unscale", "call scaler.backward(loss) first"});
  check_error([&] { s.scaler.backward(loss_of(s.list, 1)); }, {"no tape records here; make a Tape"});

  scaled_backward(s.scaler, s.list, 1);
  check_error(plain_step, {"carry the loss scale 65536", "step({.lr = ..., .scaler = &scaler})"});
  check_error([&] { plain_backward(s.list, 1); }, {"carry the loss scale 65536 and this backward has 1;"});
  GradScaler other({.init_scale = 1024});
  check_error([&] { scaled_backward(other, s.list, 1); }, {"carry the loss scale 65536 and this backward has 1024"});
  check_error([&] { s.optimizer.step({.lr = 1, .scaler = &other}); }, {"carries the loss scale 65536", "is 1024"});

  s.scaler.unscale(s.optimizer);
  check_error([&] { s.scaler.unscale(s.optimizer); }, {"unscaled already; call it once between two steps"});
  check_error([&] { scaled_backward(s.scaler, s.list, 1); }, {"and none after scaler.unscale(optimizer)"});
  check_error(plain_step, {"a GradScaler has unscaled the gradients; give it"});
  check_error([&] { s.optimizer.step({.lr = 1, .scaler = &other}); }, {"a GradScaler has unscaled"});
  CHECK(s.list[0].grad().item() == 1);  // as unscaled, nothing above has changed it
  step();
  CHECK(s.value() == -1);

  plain_backward(s.list, 1);
  check_error(step, {"carry no loss scale and the scaler's is 65536; call scaler.backward(loss)"});
  check_error([&] { scaled_backward(s.scaler, s.list, 1); }, {"carry the loss scale 1 and this backward has 65536"});
  plain_step();
  CHECK(s.value() == -2);

  // Whatever happened, a window begins anew after zero_grad, of the optimizer or of a Parameter.
  scaled_backward(s.scaler, s.list, 1);
  s.scaler.unscale(s.optimizer);
  s.list[0].zero_grad();
  CHECK_FALSE(s.step(1).skipped);
  scaled_backward(s.scaler, s.list, 1);
  s.optimizer.zero_grad();
  plain_backward(s.list, 1);
  plain_step();
  CHECK(s.value() == -4);
}

TEST_CASE("what a GradScaler refuses") {
  for (const double bad : {0.0, -1.0, kNan, kInf})
    check_error([&] { GradScaler({.init_scale = bad}); }, {"GradScaler: init_scale must be finite and above 0, not"});
  for (const double bad : {1.0, 0.5, kNan, kInf})
    check_error([&] { GradScaler({.growth_factor = bad}); }, {"GradScaler: growth_factor must be finite and above 1"});
  for (const double bad : {0.0, 1.0, -1.0, kNan})
    check_error([&] { GradScaler({.backoff_factor = bad}); }, {"GradScaler: backoff_factor must be in (0, 1)"});
  for (const std::int64_t bad : {0, -5})
    check_error([&] { GradScaler({.growth_interval = bad}); }, {"GradScaler: growth_interval must be at least 1"});
  for (const double bad : {0.0, kNan, 1e30})
    check_error([&] { GradScaler({.min_scale = bad}); }, {"min_scale <= max_scale"});
  check_error([] { GradScaler({.max_scale = kInf}); }, {"min_scale <= max_scale"});
  check_error([] { GradScaler({.init_scale = 0.5}); }, {"init_scale must lie between min_scale and max_scale"});
  Setup s;
  for (const double bad : {0.0, -1.0, kNan, kInf, 0.1})
    check_error([&] { s.scaler.set_state({bad, 0}); }, {"scale must be an f32 number above 0"});
  check_error([&] { s.scaler.set_state({1, -1}); }, {"good_steps must be at least 0, not -1"});
  Tape tape;
  check_error([&] { s.scaler.backward(loss_of(s.list, 1), kNan); }, {"weight must be finite"});
  const Var half = tape.watch(full({1}, 1, DType::f16));
  check_error([&] { s.scaler.backward(half); }, {"the loss must be f32 or f64, not f16", "compute the loss in f32"});
}

TEST_CASE("two optimizers share a scaler: each skips for itself, the window counts once") {
  std::vector<Parameter> list = filled({0, 0});
  Sgd first({NamedParameter{"a", &list[0]}}), second({NamedParameter{"b", &list[1]}});
  GradScaler scaler({.growth_interval = 2});
  const auto window = [&](double a, double b) {
    {
      Tape tape;
      scaler.backward(sum(Var(list[0]) * Var(scalar(a))) + sum(Var(list[1]) * Var(scalar(b))));
    }
    first.step({.lr = 1, .scaler = &scaler});
    second.step({.lr = 1, .scaler = &scaler});
    return scaler.state();
  };
  CHECK(window(1, 2) == GradScaler::State{65536, 1});
  CHECK(window(1, 2) == GradScaler::State{131072, 0});  // the second unscales by the window's scale
  CHECK(values_of(list) == std::vector<double>{-2, -4});
  CHECK(window(1, kInf) == GradScaler::State{65536, 0});
  CHECK(window(kInf, 1) == GradScaler::State{32768, 0});
  CHECK(window(kInf, kInf) == GradScaler::State{16384, 0});
  CHECK(values_of(list) == std::vector<double>{-3, -5});
  CHECK(window(1, 1) == GradScaler::State{16384, 1});

  // A forgotten step is found once the scale has changed.
  const auto both = [&] {
    Tape tape;
    scaler.backward(sum(Var(list[0]) + Var(list[1])));
  };
  both();
  first.step({.lr = 1, .scaler = &scaler});
  check_error(both, {"the gradients so far carry the loss scale 16384 and this backward has 32768"});
  second.step({.lr = 1, .scaler = &scaler});
  CHECK(scaler.state() == GradScaler::State{32768, 0});
}

TEST_CASE("ten overflows in a row throw, with the scale backed off ten times") {
  Setup s;
  for (int t = 0; t < 9; ++t) CHECK(s.step(kInf).skipped);
  check_error([&] { s.step(kInf); }, {"Sgd.step: 10 steps in a row were skipped", "the gradient is not finite",
                                      "gradient norm inf (first in p0) and the loss scale 128"});
  CHECK(s.scaler.scale() == 64);
  CHECK_FALSE(s.step(1).skipped);
}

TEST_CASE("outliers of loss and gradient norm") {
  Setup s;
  OutlierFilter filter({.threshold = 4, .length = 20, .warmup = 10});
  const auto step = [&](double loss, double gradient) {
    return s.step(gradient, {.lr = 0, .loss = loss, .outliers = &filter}).reason;
  };
  // The formula, written out: plain moments of the steps so far.
  double sum = 0, squares = 0;
  for (int t = 0; t < 20; ++t) {
    const double loss = 2 + 0.1 * (t % 3), gradient = 1 + 0.2 * (t % 2);
    CHECK(step(t == 5 ? 50 : loss, gradient) == SkipReason::none);  // in the warm-up nothing is an outlier
    sum += gradient;
    squares += gradient * gradient;
  }
  const double mean = sum / 20, variance = squares / 20 - mean * mean;
  CHECK(filter.state().grad_norm.mean == doctest::Approx(mean));
  CHECK(filter.state().grad_norm.variance == doctest::Approx(variance));
  const double bound = mean + 4 * std::sqrt(variance);
  CHECK(step(2, bound * 0.999) == SkipReason::none);
  OutlierFilter copy = filter;
  CHECK(step(2, 100) == SkipReason::grad_norm_outlier);
  CHECK(step(1000, 1) == SkipReason::loss_outlier);
  CHECK(step(-1000, 0) == SkipReason::none);  // low is no outlier
  const OutlierFilter::State before = filter.state();
  CHECK(step(kNan, 1) == SkipReason::loss_not_finite);
  CHECK(step(1, kInf) == SkipReason::overflow);
  CHECK(filter.state() == before);  // they leave no trace
  CHECK(s.scaler.state() == GradScaler::State{32768, 0});

  // A lasting change of level is followed before the tenth in a row: the bound grows with each.
  int skipped = 0;
  while (copy.judge(2, 3) != OutlierFilter::Kind::none) ++skipped;
  CHECK(skipped > 0);
  CHECK(skipped < 9);
  // A constant has no outliers in its last digits.
  OutlierFilter constant({.warmup = 2});
  for (int t = 0; t < 9; ++t) CHECK(constant.judge(0.5 + 1e-4 * (t % 2 == 0), 0) == OutlierFilter::Kind::none);

  check_error([] { OutlierFilter({.threshold = 0}); }, {"threshold must be finite and above 0"});
  check_error([] { OutlierFilter({.length = 1}); }, {"length must be at least 2"});
  check_error([] { OutlierFilter({.warmup = 1}); }, {"warmup must be at least 2"});
  check_error([] { OutlierFilter().set_state({.loss = {0, -1}}); }, {"a variance is negative"});
}

TEST_CASE("F01 bit-exact resume in f16: scaler in its interval, window open, dropout on, outliers skipped") {
  // Two of the losses are broken.
  const auto make = [](std::uint64_t seed, GradScaler* scaler, OutlierFilter* filter) {
    auto run = std::make_unique<Run>(
        seed, TrainerOptions{.max_steps = 30, .accumulate = 3, .scaler = scaler, .outliers = filter, .seed = 5},
        Data{.ignored = [](std::int64_t i) { return i % 4; }});
    run->functions.micro_loss = [r = run.get()](std::int64_t i) {
      LossResult result = r->data.loss(r->net, i);
      if (i == 14 * 3) result.loss = result.loss * Var(scalar(std::numeric_limits<float>::infinity()));
      if (i == 20 * 3) result.loss = result.loss + Var(scalar(1e4));
      return result;
    };
    run->net.autocast = DType::f16;
    return run;
  };
  const GradScalerOptions options{.growth_interval = 4};
  const OutlierOptions outliers{.threshold = 20, .length = 8, .warmup = 4};
  GradScaler scaler(options);
  OutlierFilter filter(outliers);
  const auto unbroken = make(1, &scaler, &filter);
  unbroken->trainer().run();
  CHECK(unbroken->losses().back() < unbroken->losses().front());
  std::vector<SkipReason> reasons;
  for (const StepInfo& info : unbroken->steps)
    if (info.skipped) reasons.push_back(info.reason);
  CHECK(std::count(reasons.begin(), reasons.end(), SkipReason::loss_not_finite) == 1);
  CHECK(std::count(reasons.begin(), reasons.end(), SkipReason::loss_outlier) == 1);
  CHECK(unbroken->steps.back().skipped_steps == static_cast<std::int64_t>(reasons.size()));

  const TemporaryFolder folder;
  const std::string path = folder / "resume.h5";
  for (const int micro_steps : {30, 31, 44, 62, 65}) {
    CAPTURE(micro_steps);
    GradScaler first_scaler(options), second_scaler(options);
    OutlierFilter first_filter(outliers), second_filter(outliers);
    const auto first = make(1, &first_scaler, &first_filter), second = make(2, &second_scaler, &second_filter);
    for (int i = 0; i < micro_steps / 3; ++i) first->trainer().step();
    for (int i = 0; i < micro_steps % 3; ++i) first->trainer().micro_step();
    first->trainer().save(path);
    second->trainer().load(path);
    CHECK(second_scaler.state() == first_scaler.state());
    CHECK(second_filter.state() == first_filter.state());
    second->trainer().run();
    CHECK(weights_hash(second->net) == weights_hash(unbroken->net));
    CHECK(second_scaler.state() == scaler.state());
    CHECK(second_filter.state() == filter.state());
    for (std::size_t i = 0; i < second->steps.size(); ++i) {
      const StepInfo &a = second->steps[i], &b = unbroken->steps[unbroken->steps.size() - second->steps.size() + i];
      const bool same_loss = a.loss == b.loss || (std::isnan(a.loss) && std::isnan(b.loss));
      CHECK((same_loss && a.scale == b.scale && a.reason == b.reason && a.lr == b.lr));
    }
  }
}

TEST_CASE("a state with a scaler and a run without one, and the other way round, do not fit") {
  const TemporaryFolder folder;
  const std::string with = folder / "with.h5", without = folder / "without.h5";
  GradScaler scaler, off({.enabled = false});
  OutlierFilter filter;
  Run scaled(1, {.scaler = &scaler}), plain(2, {.scaler = &off}), filtered(3, {.outliers = &filter});
  scaled.trainer().micro_step();
  scaled.trainer().save(with);
  plain.trainer().micro_step();
  plain.trainer().save(without);
  const std::string before = weights_hash(plain.net);
  check_error([&] { scaled.trainer().load(without); }, {without, "holds no scaler", "a run without one"});
  check_error([&] { plain.trainer().load(with); }, {with, "holds the state of a GradScaler", "TrainerOptions::scaler"});
  check_error([&] { filtered.trainer().load(without); }, {without, "holds no statistics", "without a filter"});
  CHECK(weights_hash(plain.net) == before);

  // Without a Trainer: the gradients of the open window keep their scale, so that a step must have the scaler.
  Net net(4);
  AdamW optimizer(parameters(net));
  const RunState run = load_training_state(with, net, &optimizer);
  check_error([&] { optimizer.step({.lr = 1}); }, {"carry the loss scale 65536"});
  GradScaler loaded({.init_scale = 4});
  loaded.load(run);
  CHECK_FALSE(optimizer.step({.lr = 1, .scaler = &loaded}).skipped);
  RunState damaged = run;
  damaged.numbers["grad_scaler.scale"] = 0;
  check_error([&] { loaded.load(damaged); }, {"scale must be an f32 number above 0"});
}

TEST_CASE("a skipped step leaves weights, moments, counts and the position in the schedule") {
  GradScaler scaler({.init_scale = 0x1p20});
  Run run(1, {.scaler = &scaler});
  std::vector<double> rates;
  bool overflow = true;
  run.functions.micro_loss = [&](std::int64_t i) {
    LossResult result = run.data.loss(run.net, i);
    if (overflow) result.loss = result.loss * Var(scalar(1e35));
    return result;
  };
  const std::string before = weights_hash(run.net);
  StepInfo info;
  for (int t = 0; t < 3; ++t) info = run.trainer().step();
  CHECK(info.skipped);
  CHECK(info.reason == SkipReason::overflow);
  CHECK(info.skipped_steps == 3);
  CHECK(info.scale == 0x1p18);
  CHECK(info.lr == doctest::Approx(0.02 / 3));
  CHECK(weights_hash(run.net) == before);
  for (const Optimizer::NamedState& s : run.optimizer.state()) {
    CAPTURE(s.name);
    for (std::int64_t i = 0; i < s.tensor.numel(); ++i) CHECK(s.tensor.at(i) == 0);
  }
  CHECK(run.optimizer.steps() == 0);
  overflow = false;
  info = run.trainer().step();
  CHECK(info.lr == doctest::Approx(0.02 / 3));
  CHECK(info.scale == 0x1p17);
  CHECK_FALSE(info.skipped);
  CHECK(run.trainer().step().lr == doctest::Approx(0.04 / 3));
  CHECK(run.trainer().current_step() == 5);
}

TEST_CASE("token-weighted micro-batches under a scaler equal those of a plain run bit for bit") {
  const Data parts{.ignored = [](std::int64_t i) { return 3 * (i % 4); }};
  GradScaler scaler;
  Run scaled(1, {.accumulate = 4, .scaler = &scaler}, parts, 0), plain(1, {.accumulate = 4}, parts, 0);
  for (int t = 0; t < 3; ++t) {
    const StepInfo a = scaled.trainer().step(), b = plain.trainer().step();
    CHECK(a.grad_norm == b.grad_norm);
    CHECK(a.loss == b.loss);
    CHECK(a.scale == 65536);
  }
  CHECK(weights_hash(scaled.net) == weights_hash(plain.net));
}
