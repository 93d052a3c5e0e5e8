// GradScaler: the scale after each step against written-out sequences and PyTorch, and what a step does with scaled
// gradients.
#include <bit>
#include <cmath>

#include "autograd/checkpoint.h"
#include "core/io/hdf5_file.h"
#include "optim/outlier_filter.h"
#include "tests/allocation_counter.h"
#include "tests/compare.h"
#include "tests/error_message.h"
#include "tests/scaler_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

constexpr double kSmallest = 0x1p-126, kLargest = std::numeric_limits<float>::max();

}  // namespace

TEST_CASE("O07 scale schedule: written-out sequences") {
  struct Row {
    const char* name;
    GradScalerOptions options;
    const char* pattern;  // 1 where the gradient overflows
    std::vector<GradScaler::State> states;
  };
  const GradScalerOptions two{.growth_interval = 2};
  const double top = 0x1p127;
  const Row rows[] = {
      {"the case's own", two, "001000", {{65536, 1}, {131072}, {65536}, {65536, 1}, {131072}, {131072, 1}}},
      {"an overflow begins the interval anew", two, "0101", {{65536, 1}, {32768}, {32768, 1}, {16384}}},
      {"overflow in the step that would grow", two, "01000", {{65536, 1}, {32768}, {32768, 1}, {65536}, {65536, 1}}},
      {"growth every step", {.init_scale = 1, .growth_interval = 1}, "000", {{2}, {4}, {8}}},
      {"overflow first", two, "100", {{32768}, {32768, 1}, {65536}}},
      {"overflows in a row", {}, "1111", {{32768}, {16384}, {8192}, {4096}}},
      {"the default interval is long", {}, "000", {{65536, 1}, {65536, 2}, {65536, 3}}},
      {"other factors",
       {.init_scale = 100, .growth_factor = 3, .growth_interval = 1, .backoff_factor = 0.25},
       "0110",
       {{300}, {75}, {18.75}, {56.25}}},
      {"the floor", {.init_scale = 4, .growth_interval = 1}, "11110", {{2}, {1}, {1}, {1}, {2}}},
      {"a floor between powers", {.init_scale = 4, .min_scale = 1.5}, "111", {{2}, {1.5}, {1.5}}},
      {"the cap", {.init_scale = 0x1p23, .growth_interval = 1}, "0001", {{0x1p24}, {0x1p24}, {0x1p24}, {0x1p23}}},
      {"a cap between powers", {.init_scale = 8, .growth_interval = 1, .max_scale = 20}, "001", {{16}, {20}, {10}}},
      {"growth at 2^127",
       {.init_scale = top, .growth_interval = 1, .max_scale = kLargest},
       "0010",
       {{top}, {top}, {0x1p126}, {top}}},
      {"never 0",
       {.init_scale = 0x1p-125, .backoff_factor = 1e-30, .min_scale = kSmallest},
       "11",
       {{kSmallest}, {kSmallest}}},
      {"static",
       {.init_scale = 1024, .dynamic = false, .growth_interval = 1},
       "0100",
       {{1024}, {1024}, {1024}, {1024}}},
      {"not enabled", {.growth_interval = 1, .enabled = false}, "010", {{1}, {1}, {1}}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    Setup s(row.options);
    for (std::size_t t = 0; t < row.states.size(); ++t) {
      CAPTURE(t);
      const bool overflow = row.pattern[t] == '1';
      CHECK(s.step(overflow ? kInf : 0).skipped == overflow);
      CHECK(s.scaler.state() == row.states[t]);
    }
  }
}

TEST_CASE("O07 10,000 random patterns of overflow, as PyTorch's GradScaler") {
  const Hdf5Reader reference(TAPESTRY_SOURCE_DIR "/tests/oracle/scaler_reference.h5");
  const Tensor settings = reference.read("settings"), overflow = reference.read("overflow"),
               scale = reference.read("scale"), counter = reference.read("counter"), digest = reference.read("digest");
  const std::int64_t patterns = overflow.numel(), per_setting = patterns / settings.shape()[0];
  REQUIRE(patterns == 10000);
  constexpr int kSteps = 24;
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < patterns; ++i) {
    const double* setting = settings.data<double>() + 4 * (i / per_setting);
    Setup s({.init_scale = setting[0],
             .growth_factor = setting[1],
             .growth_interval = static_cast<std::int64_t>(setting[3]),
             .backoff_factor = setting[2],
             .min_scale = kSmallest,
             .max_scale = kLargest});
    std::uint64_t hash = 0xcbf29ce484222325;
    for (int t = 0; t < kSteps; ++t) {
      s.step(overflow.data<std::int32_t>()[i] >> t & 1 ? kInf : 0);
      const GradScaler::State state = s.scaler.state();
      const std::uint32_t words[] = {std::bit_cast<std::uint32_t>(static_cast<float>(state.scale)),
                                     static_cast<std::uint32_t>(state.good_steps)};
      for (const std::uint32_t word : words) hash = (hash ^ word) * 0x100000001b3;
    }
    const GradScaler::State last = s.scaler.state();
    wrong += last.scale != static_cast<double>(scale.data<float>()[i]) ||
             last.good_steps != counter.data<std::uint8_t>()[i] ||
             std::bit_cast<std::int64_t>(hash) != digest.data<std::int64_t>()[i];
  }
  CHECK(wrong == 0);
}

TEST_CASE("O05 a scaled step: finite check, norm in double, nothing changes when skipped") {
  std::vector<Parameter> list = make_parameters({{40}, {3, 5}});
  AdamW optimizer(one_group(list));
  GradScaler scaler({.growth_interval = 1});
  scaled_backward(scaler, list, 0.5);
  CHECK(optimizer.step({.lr = 0.1, .scaler = &scaler}).grad_norm == doctest::Approx(0.5 * std::sqrt(55)));
  CHECK(scaler.scale() == 131072);
  const std::vector<double> before = values_of(list);
  const Tensor m = optimizer.state()[0].tensor.clone(), v = optimizer.state()[2].tensor.clone();
  const Optimizer::Counters counters = optimizer.counters();
  for (const double bad : {kInf, kNan, -kInf, 1e35}) {  // 1e35 is finite, but not times the scale
    scaled_backward(scaler, list, bad);
    const double scale = scaler.scale();
    const StepReport report = optimizer.step({.lr = 0.1, .scaler = &scaler, .clip_norm = 1});
    CHECK(report.skipped);
    CHECK(report.reason == SkipReason::overflow);
    CHECK(report.scale == scale);
    CHECK(scaler.scale() == scale / 2);
    CHECK(values_of(list) == before);
    CHECK(same_bits(optimizer.state()[0].tensor, m));
    CHECK(same_bits(optimizer.state()[2].tensor, v));
    CHECK(optimizer.counters().updates == counters.updates);
    CHECK_FALSE(list[0].has_grad());
  }
  CHECK(optimizer.steps() == 1);
  CHECK(optimizer.skipped_steps() == 4);
  // Squares beyond f32 in the scaled gradients.
  scaled_backward(scaler, list, 1e30);
  CHECK(optimizer.step({.lr = 0, .scaler = &scaler}).grad_norm == doctest::Approx(1e30 * std::sqrt(55)));
}

TEST_CASE("O06 clipping takes the unscaled gradients") {
  auto run = [](const StepOptions& options, auto&& by_hand) {
    std::vector<Parameter> list = filled({0, 0});
    Sgd optimizer(one_group(list));
    GradScaler scaler;
    {
      Tape tape;
      scaler.backward(sum(Var(list[0])) * Var(scalar(3)) + sum(Var(list[1])) * Var(scalar(4)));
    }
    by_hand(scaler, optimizer, list);
    StepOptions all = options;
    all.scaler = &scaler;
    CHECK(optimizer.step(all).grad_norm == 5);
    return values_of(list);
  };
  auto nothing = [](auto&...) {};
  auto look = [](GradScaler& scaler, Sgd& optimizer, std::vector<Parameter>& list) {
    scaler.unscale(optimizer);
    CHECK(list[0].grad().item() == 3);
    CHECK(list[1].grad().item() == 4);
    check_error([&] { scaler.unscale(optimizer); }, {"GradScaler.unscale", "Sgd are unscaled already"});
  };
  auto clip = [&](const StepOptions& options, double x, double y, auto&& by_hand) {
    const std::vector<double> result = run(options, by_hand);
    CHECK(result[0] == doctest::Approx(x).epsilon(1e-6));
    CHECK(result[1] == doctest::Approx(y).epsilon(1e-6));
  };
  clip({.lr = 1, .clip_norm = 1}, -0.6, -0.8, nothing);
  clip({.lr = 1, .clip_norm = 1}, -0.6, -0.8, look);
  clip({.lr = 1}, -3, -4, look);
  clip({.lr = 1, .clip_value = 3.5}, -3, -3.5, nothing);
  clip({.lr = 1, .clip_value = 3.5}, -3, -3.5, look);
  clip({.lr = 1, .clip_norm = 5, .clip_value = 3}, -3, -3, nothing);  // the norm is 4.2 once the values are clipped
  clip({.lr = 1, .clip_norm = 3, .clip_value = 3}, -3 / std::sqrt(2), -3 / std::sqrt(2), nothing);
}

TEST_CASE("an overflow that is hidden by hand after unscale still skips") {
  Setup s;
  scaled_backward(s.scaler, s.list, kInf);
  s.scaler.unscale(s.optimizer);
  s.list[0].state()->grad.tensor.fill(1);
  CHECK(s.optimizer.step({.lr = 1, .scaler = &s.scaler}).reason == SkipReason::overflow);
  CHECK(s.value() == 0);
  CHECK(s.scaler.scale() == 32768);
}

TEST_CASE("clip_value clamps both ways, keeps NaN out of the weights, and is checked") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    std::vector<Parameter> wide = make_parameters({{20001}}, dtype);
    wide[0].assign(zeros({20001}, dtype));
    Sgd optimizer(one_group(wide));
    Tensor gradient = empty({20001}, dtype);
    fill_normal(gradient, 0, 1, {3, 4});
    set_grad(wide[0], gradient);
    optimizer.step({.lr = 1, .clip_value = 0.5});
    for (std::int64_t i = 0; i < 20001; ++i)
      if (wide[0].value().at(i) != -std::clamp(gradient.at(i), -0.5, 0.5)) FAIL_CHECK("element ", i);
    set_grad(wide[0], kNan);
    CHECK(optimizer.step({.lr = 1, .clip_value = 0.5}).skipped);
    set_grad(wide[0], 1);
    for (const double bad : {-1.0, kNan, kInf})
      check_error([&] { optimizer.step({.lr = 1, .clip_value = bad}); }, {"Sgd.step: clip_value must be finite"});
  }
}

TEST_CASE("a power of two as scale changes no bit of an f32 or f64 run") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    std::vector<std::vector<double>> results;
    for (const bool scaled : {false, true}) {
      std::vector<Parameter> list = make_parameters({{5, 7}, {7}}, dtype);
      AdamW optimizer(one_group(list));
      GradScaler scaler({.growth_interval = 2, .enabled = scaled});
      for (std::uint64_t t = 0; t < 6; ++t) {
        Tape tape;
        const Var h = matmul(Var(random_normal({3, 5}, t, dtype)), Var(list[0])) + Var(list[1]);
        scaler.backward(mean(h * h));
        optimizer.step({.lr = 0.1, .scaler = &scaler, .clip_norm = 0.3});
      }
      CHECK(scaler.scale() == (scaled ? 65536 * 8 : 1));
      results.push_back(values_of(list));
    }
    CHECK(results[0] == results[1]);
  }
}

TEST_CASE("micro-batches weighted by their tokens; one overflow skips the whole window") {
  Setup s;
  const double counts[] = {3, 1, 4}, gradients[] = {1, -2, 0.5};
  for (int i = 0; i < 3; ++i) scaled_backward(s.scaler, s.list, gradients[i], counts[i] / 8);
  s.optimizer.step({.lr = 1, .scaler = &s.scaler});
  CHECK(s.value() == -(3.0 * 1 - 2 + 4 * 0.5) / 8);

  const double before = s.value();
  for (const double gradient : {1.0, kInf, 1.0}) scaled_backward(s.scaler, s.list, gradient, 1.0 / 3);
  CHECK(s.optimizer.step({.lr = 1, .scaler = &s.scaler}).skipped);
  CHECK(s.value() == before);
  CHECK(s.scaler.scale() == 32768);
  CHECK_FALSE(s.step(1).skipped);
}

TEST_CASE("tied and frozen parameters, and checkpointed segments") {
  std::vector<Parameter> list = filled({1, 2, 3});
  tie(list[0], list[1]);
  list[2].set_trainable(false);
  ParameterGroup group{.parameters = {{"tied", &list[0]}, {"frozen", &list[2]}}};
  Sgd optimizer({group});
  GradScaler scaler;
  for (int micro = 0; micro < 2; ++micro) {
    Tape tape;
    const Var frozen(list[2]);
    const auto product = [&](const Var& x) { return x * Var(list[0]) * frozen.detach(); };
    scaler.backward(sum(checkpoint(product, Var(list[1]))), 0.5);
  }
  optimizer.step({.lr = 1, .scaler = &scaler});
  CHECK(list[0].value().item() == 1 - 2 * 3);  // d(w w 3) = 6 w
  CHECK(list[1].value().item() == list[0].value().item());
  CHECK(list[2].value().item() == 3);
}

TEST_CASE("f16 without a scaler loses small gradients, with it they arrive") {
  // A gradient has the type of its value, so here it passes through f16.
  const auto train = [&](GradScaler* scaler) {
    std::vector<Parameter> list = filled({1});
    AdamW optimizer(one_group(list), {.weight_decay = 0});
    for (int t = 0; t < 20; ++t) {
      Tape tape;
      const Var y = cast(cast(list[0], DType::f16), DType::f32);
      const Var loss = sum(y * Var(scalar(1e-8)));  // below 2^-25, which rounds to 0 in f16
      scaler ? scaler->backward(loss) : tape.backward(loss);
      CHECK((list[0].grad().item() != 0) == (scaler != nullptr));
      optimizer.step({.lr = 0.01, .scaler = scaler});
    }
    return list[0].value().item();
  };
  GradScaler scaler;
  CHECK(train(nullptr) == 1);
  CHECK(train(&scaler) < 0.95);
}

TEST_CASE("a scaled step allocates nothing after the first") {
  std::vector<Parameter> list = make_parameters({{31, 33}, {33}});
  AdamW optimizer(one_group(list));
  GradScaler scaler({.growth_interval = 2});
  OutlierFilter filter;
  for (int t = 0; t < 6; ++t) {
    const Tensor x = random_normal({5, 31}, 1);
    const std::int64_t before = heap_allocations;
    {
      Tape tape;
      const Var h = matmul(Var(x), Var(list[0])) + Var(list[1]);
      scaler.backward(mean(h * h));
    }
    if (t % 2 == 0) scaler.unscale(optimizer);
    optimizer.step(
        {.lr = 0.1, .scaler = &scaler, .clip_norm = 0.1, .clip_value = 1e-3, .loss = 1, .outliers = &filter});
    if (t > 1) CHECK(heap_allocations == before);
  }
}
