// Optimizers: traces and references, clipping and skipping, groups, bits for any thread count, no allocations.
#include <cmath>
#include <optional>

#include "core/parallel.h"
#include "tests/allocation_counter.h"
#include "tests/optimizer_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

TEST_CASE("O01 AdamW reference trace") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f64 ? 1e-9 : 2e-7;
    std::vector<Parameter> list = filled({1, 1, 1}, dtype);
    AdamW optimizer(one_group(list), {.weight_decay = 0.01});
    for (const double expected : {0.899000002, 0.798101004, 0.697302905}) {
      for (Parameter& p : list) set_grad(p, 0.5);
      optimizer.step({.lr = 0.1});
      for (const double value : values_of(list)) {
        CHECK(value == doctest::Approx(expected).epsilon(tolerance));
        CHECK(value == list[0].value().item());
      }
    }
    CHECK(optimizer.steps() == 3);
  }
  SUBCASE("decay is decoupled") {
    std::vector<Parameter> list = filled({1});
    AdamW optimizer(one_group(list), {.weight_decay = 0.01});
    set_grad(list[0], 0);
    optimizer.step({.lr = 0.1});
    CHECK(list[0].value().item() == doctest::Approx(0.999).epsilon(1e-7));
  }
  SUBCASE("eps is added to the corrected root") {
    std::vector<Parameter> list = filled({0});
    AdamW optimizer(one_group(list), {.weight_decay = 0});
    set_grad(list[0], 1e-8);
    optimizer.step({.lr = 1});
    CHECK(list[0].value().item() == doctest::Approx(-0.5).epsilon(1e-5));
  }
}

TEST_CASE("O02 Adam epsilon with a zero gradient") {
  std::vector<Parameter> list = filled({1, -2, 0.5});
  AdamW optimizer(one_group(list), {.weight_decay = 0});
  for (int t = 0; t < 3; ++t) {
    for (Parameter& p : list) set_grad(p, 0);
    optimizer.step({.lr = 0.1});
  }
  CHECK(values_of(list) == std::vector<double>{1, -2, 0.5});
}

TEST_CASE("O02 16-bit parameters are refused; f32 ones with gradients of 16-bit copies keep eps") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::vector<Parameter> low = filled({1, -2, 0.5}, dtype);
    CHECK_THROWS_WITH_AS(
        AdamW(one_group(low), {}),
        text_of("optimizer: p0 is ", dtype, ", but parameters are kept in f32 or f64; convert the model first").c_str(),
        Error);
    std::vector<Parameter> list = filled({1, -2, 0.5});
    AdamW optimizer(one_group(list), {.weight_decay = 0});
    for (int t = 0; t < 3; ++t) {
      for (Parameter& p : list) set_grad(p, full({1}, 1e-9, dtype));  // 0 in f16
      optimizer.step({.lr = 0.1});
    }
    const bool zero = dtype == DType::f16;
    for (std::size_t i = 0; i < 3; ++i) {
      const double start = std::array{1.0, -2.0, 0.5}[i], value = list[i].value().item();
      CHECK(std::isfinite(value));
      CHECK((value == start) == zero);
      if (!zero) CHECK(value == doctest::Approx(start - 0.3 / 11).epsilon(1e-3));  // g / (g + eps) = 1 / 11
    }
  }
}

TEST_CASE("O04 momentum and a changing learning rate") {
  auto run = [](const SgdOptions& options) {
    std::vector<Parameter> list = filled({0});
    Sgd optimizer(one_group(list), options);
    for (const double lr : {1.0, 0.1}) {
      set_grad(list[0], 1);
      optimizer.step({.lr = lr});
    }
    return list[0].value().item();
  };
  CHECK(run({.momentum = 0.9}) == doctest::Approx(-1.19).epsilon(1e-6));
  CHECK(run({.momentum = 0.9, .nesterov = true}) == doctest::Approx(-2.171).epsilon(1e-6));
  CHECK(run({}) == doctest::Approx(-1.1).epsilon(1e-6));
}

TEST_CASE("O05 clip norm overflow and non-finite gradients") {
  SUBCASE("squares beyond the range of f32") {
    std::vector<Parameter> list;
    for (int i = 0; i < 100; ++i) list.emplace_back(Shape{1});
    Sgd optimizer(one_group(list));
    for (Parameter& p : list) set_grad(p, 1e20);
    CHECK(optimizer.step({.lr = 1, .clip_norm = 1}).grad_norm == doctest::Approx(1e21).epsilon(1e-6));
    for (const double value : values_of(list)) CHECK(value == doctest::Approx(-0.1).epsilon(1e-6));
  }
  SUBCASE("zeros stay zeros") {
    std::vector<Parameter> list = filled({2});
    Sgd optimizer(one_group(list));
    set_grad(list[0], 0);
    CHECK(optimizer.step({.lr = 1, .clip_norm = 1}).grad_norm == 0);
    CHECK(list[0].value().item() == 2);
  }
  SUBCASE("a small norm is not scaled up") {
    std::vector<Parameter> list = filled({0});
    Sgd optimizer(one_group(list));
    set_grad(list[0], 0.25);
    optimizer.step({.lr = 1, .clip_norm = 1});
    CHECK(list[0].value().item() == -0.25);
  }
  SUBCASE("one inf or NaN skips the step and leaves gradients and moments alone") {
    for (const double bad : {kInf, -kInf, kNan}) {
      std::vector<Parameter> list = make_parameters({{40}, {3, 5}});
      AdamW optimizer(one_group(list));
      random_grads(list, 1);
      optimizer.step({.lr = 0.1});
      random_grads(list, 2);
      list[0].state()->grad.tensor.mutable_data<float>()[17] = static_cast<float>(bad);
      const std::vector<double> before = values_of(list);
      const Tensor gradient = list[1].grad().clone(), m = optimizer.state()[0].tensor.clone();
      const StepReport report = optimizer.step({.lr = 0.1, .clip_norm = 1});
      CHECK(report.skipped);
      CHECK_FALSE(std::isfinite(report.grad_norm));
      CHECK(values_of(list) == before);
      CHECK(same_bits(list[1].state()->grad.tensor, gradient));
      CHECK(same_bits(optimizer.state()[0].tensor, m));
      CHECK_FALSE(list[1].has_grad());
      CHECK(optimizer.steps() == 1);
    }
  }
}

TEST_CASE("O06 clipping takes the true gradients") {
  std::vector<Parameter> list = filled({0, 0});
  Sgd optimizer(one_group(list));
  set_grad(list[0], 3);
  set_grad(list[1], 4);
  CHECK(optimizer.step({.lr = 1, .clip_norm = 1}).grad_norm == 5);
  CHECK(list[0].value().item() == doctest::Approx(-0.6).epsilon(1e-7));
  CHECK(list[1].value().item() == doctest::Approx(-0.8).epsilon(1e-7));
}

TEST_CASE("ten steps in a row that are not finite throw and name the parameter") {
  std::vector<Parameter> list = filled({1, 1});
  Sgd optimizer(one_group(list));
  auto bad_step = [&](double loss) {
    set_grad(list[0], 1);
    set_grad(list[1], loss == 0 ? kNan : 1);
    return optimizer.step({.lr = 1, .loss = loss}).skipped;
  };
  for (int i = 0; i < 9; ++i) CHECK(bad_step(0));
  set_grad(list[0], 0);
  CHECK_FALSE(optimizer.step({.lr = 1}).skipped);
  for (int i = 0; i < 8; ++i) CHECK(bad_step(0));
  CHECK(bad_step(kNan));
  CHECK_THROWS_WITH_AS(
      bad_step(0),
      "Sgd.step: 10 steps in a row were skipped, now because the gradient is not finite: the loss is 0, the gradient "
      "norm nan (first in p1) and the loss scale 1; lower the learning rate, clip the gradients, or look at the data",
      Error);
  CHECK(values_of(list) == std::vector<double>{1, 1});
  CHECK_FALSE(list[0].has_grad());
}

TEST_CASE("AdamW and Sgd equal their formulas in double, on odd sizes") {
  const std::vector<Shape> shapes = {{1}, {3, 11}, {31}, {16385}, {0}, {5, 7}, {33, 1000}};
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f64 ? 1e-12 : 3e-6;
    for (const int kind : {0, 1, 2, 3}) {
      CAPTURE(kind);
      std::vector<Parameter> list = make_parameters(shapes, dtype);
      std::vector<double> p = values_of(list), m(p.size()), v(p.size());
      const SgdOptions sgd{.momentum = kind == 1 ? 0 : 0.9, .nesterov = kind == 3, .weight_decay = 0.1};
      std::optional<AdamW> adamw;
      std::optional<Sgd> plain;
      if (kind == 0)
        adamw.emplace(one_group(list), AdamWOptions{.beta2 = 0.99, .weight_decay = 0.1});
      else
        plain.emplace(one_group(list), sgd);
      Optimizer& optimizer = adamw ? static_cast<Optimizer&>(*adamw) : *plain;
      for (int t = 1; t <= 4; ++t) {
        random_grads(list, static_cast<std::uint64_t>(t));
        std::vector<double> g;
        double sum = 0;
        for (const Parameter& q : list)
          for (std::int64_t i = 0; i < q.numel(); ++i) g.push_back(q.grad().at(i));
        for (const double x : g) sum += x * x;
        const StepReport report = optimizer.step({.lr = 0.01, .clip_norm = 2});
        CHECK(report.grad_norm == doctest::Approx(std::sqrt(sum)).epsilon(1e-12));
        for (std::size_t i = 0; i < p.size(); ++i) {
          const double x = g[i] * 2 / std::sqrt(sum);
          if (kind == 0) {
            m[i] = 0.9 * m[i] + 0.1 * x;
            v[i] = 0.99 * v[i] + 0.01 * x * x;
            const double mhat = m[i] / (1 - std::pow(0.9, t)), vhat = v[i] / (1 - std::pow(0.99, t));
            p[i] = p[i] * (1 - 0.01 * 0.1) - 0.01 * mhat / (std::sqrt(vhat) + 1e-8);
          } else {
            const double with_decay = x + 0.1 * p[i];
            m[i] = t == 1 ? with_decay : sgd.momentum * m[i] + with_decay;
            p[i] -= 0.01 * (sgd.nesterov ? with_decay + 0.9 * m[i] : m[i]);
          }
        }
      }
      const std::vector<double> result = values_of(list);
      double worst = 0;
      for (std::size_t i = 0; i < p.size(); ++i) worst = std::max(worst, std::abs(result[i] - p[i]));
      CHECK(worst < tolerance);
    }
  }
}

TEST_CASE("the same bits with 1, 2 and 3 threads") {
  std::vector<std::vector<double>> results;
  std::vector<double> norms;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    std::vector<Parameter> list = make_parameters({{257, 391}, {17}, {100003}});
    AdamW optimizer(one_group(list));
    for (std::uint64_t t = 0; t < 3; ++t) {
      random_grads(list, t);
      norms.push_back(optimizer.step({.lr = 0.01, .clip_norm = 1}).grad_norm);
    }
    results.push_back(values_of(list));
  }
  set_num_threads(0);
  for (const int i : {1, 2}) {
    CHECK(results[static_cast<std::size_t>(i)] == results[0]);
    for (std::size_t t = 0; t < 3; ++t) CHECK(norms[static_cast<std::size_t>(3 * i) + t] == norms[t]);
  }
}

TEST_CASE("groups have their own rate and decay") {
  std::vector<Parameter> list = filled({1, 1});
  ParameterGroup fast{.parameters = {{"fast", &list[0]}}, .lr_scale = 2, .weight_decay = 0};
  ParameterGroup slow{.parameters = {{"slow", &list[1]}}};
  Sgd optimizer({fast, slow}, {.weight_decay = 0.5});
  for (Parameter& p : list) set_grad(p, 1);
  optimizer.step({.lr = 0.1});
  CHECK(list[0].value().item() == doctest::Approx(1 - 0.2));
  CHECK(list[1].value().item() == doctest::Approx(1 - 0.1 * 1.5));

  // A bare list of parameters decays its matrices only.
  std::vector<Parameter> mixed = make_parameters({{4}, {2, 2}});
  const std::vector<double> before = values_of(mixed);
  AdamW by_rank({{"bias", &mixed[0]}, {"weight", &mixed[1]}}, {.weight_decay = 0.5});
  for (Parameter& p : mixed) set_grad(p, 0);
  by_rank.step({.lr = 0.1});
  const std::vector<double> after = values_of(mixed);
  for (std::size_t i = 0; i < 8; ++i) CHECK(after[i] == doctest::Approx(before[i] * (i < 4 ? 1 : 0.95)).epsilon(1e-6));
}

TEST_CASE("a step allocates nothing after the first") {
  std::vector<Parameter> list = make_parameters({{300, 301}, {301}, {301, 5}});
  AdamW adamw({{"a", &list[0]}, {"b", &list[1]}});
  Sgd sgd({NamedParameter{"c", &list[2]}}, {.momentum = 0.9});
  std::int64_t before = 0, pool = 0;
  for (int t = 0; t < 4; ++t) {
    random_grads(list, static_cast<std::uint64_t>(t));
    if (t == 3) list[1].zero_grad();
    if (t == 1) pool = memory_stats().system_requests;
    before = heap_allocations;
    adamw.step({.lr = 0.1, .clip_norm = 1});
    sgd.step({.lr = 0.1, .clip_norm = 1});
    if (t > 0) CHECK(heap_allocations == before);
  }
  CHECK(memory_stats().system_requests == pool);
}
