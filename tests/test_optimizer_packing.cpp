// Optimizers as owners of flat buffers: packing, what is left out, wrong use.
#include "autograd/ops.h"
#include "tests/error_message.h"
#include "tests/optimizer_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

TEST_CASE("a parameter without gradient is left out of norm, update and decay") {
  std::vector<Parameter> list = filled({1, 1, 1});
  AdamW optimizer(one_group(list), {.weight_decay = 0.5});
  // The buffer of an unset gradient may hold anything.
  set_grad(list[1], kNan);
  list[1].zero_grad();
  set_grad(list[0], 3);
  set_grad(list[2], 4);
  CHECK(optimizer.step({.lr = 0.1}).grad_norm == 5);
  CHECK(list[1].value().item() == 1);
  CHECK(list[0].value().item() == doctest::Approx(0.85));

  // Its first update comes with the bias correction of a first update.
  for (Parameter& p : list) set_grad(p, 0.5);
  optimizer.step({.lr = 0.1});
  CHECK(list[1].value().item() == doctest::Approx(0.85));
  CHECK(optimizer.counters().updates == std::map<std::string, std::int64_t>{{"p0", 2}, {"p1", 1}, {"p2", 2}});

  CHECK_THROWS_WITH_AS(optimizer.step({.lr = 0.1}), "AdamW.step: no parameter has a gradient; call backward first",
                       Error);
  set_grad(list[0], 1);
  optimizer.zero_grad();
  CHECK_FALSE(list[0].has_grad());
}

TEST_CASE("packing: aligned zero-padded segments, values and gradients kept") {
  std::vector<Parameter> list = make_parameters({{3}, {2, 9}, {16}});
  const std::vector<double> before = values_of(list);
  set_grad(list[1], 2);
  const std::int64_t gradients = memory_stats().current[static_cast<std::size_t>(MemoryCategory::gradients)];
  AdamW optimizer(one_group(list));
  CHECK(memory_stats().current[static_cast<std::size_t>(MemoryCategory::gradients)] > gradients);
  CHECK(values_of(list) == before);
  CHECK_FALSE(list[0].has_grad());
  REQUIRE(list[1].has_grad());
  CHECK(list[1].grad().at(17) == 2);
  for (int t = 0; t < 3; ++t) {
    for (Parameter& p : list) set_grad(p, 1);
    optimizer.step({.lr = 0.1});
  }
  for (const Parameter& p : list) {
    CHECK(p.packed());
    CHECK(p.value().byte_offset() % 64 == 0);
    CHECK(p.value().storage() == list[0].value().storage());
  }
  const Tensor flat(list[0].value().storage(), 0, {64}, DType::f32);
  for (std::int64_t i = 0; i < 64; ++i)
    if (i >= 3 && i < 16) CHECK(flat.at(i) == 0);
  for (std::int64_t i = 16 + 18; i < 48; ++i) CHECK(flat.at(i) == 0);
}

TEST_CASE("packing: ownership") {
  std::vector<Parameter> list = make_parameters({{3, 3}, {3, 3}});
  {
    AdamW optimizer(one_group(list));
    CHECK_THROWS_WITH_AS(Sgd{one_group(list)},
                         "optimizer: p0 is already owned by another optimizer; destroy that one first", Error);
    CHECK_THROWS_AS(list[0].to(DType::f64), Error);
    CHECK_THROWS_AS(tie(list[0], list[1]), Error);
    CHECK(values_of(list).size() == 18);
  }
  const std::vector<double> before = values_of(list);
  CHECK_FALSE(list[0].packed());
  tie(list[0], list[1]);
  CHECK_THROWS_WITH_AS(AdamW{one_group(list)}, "optimizer: p1 is listed twice; give each parameter once", Error);
  CHECK_FALSE(list[0].packed());
  AdamW optimizer({NamedParameter{"tied", &list[0]}});
  set_grad(list[1], 1);
  optimizer.step({.lr = 0.1});
  CHECK(list[0].value().at(0) == doctest::Approx(before[0] * (1 - 0.1 * 0.01) - 0.1));

  SUBCASE("the model may go first") { list.clear(); }
  SUBCASE("a moved Parameter stays packed") {
    Parameter moved = std::move(list[0]);
    CHECK(moved.packed());
    set_grad(moved, 1);
    optimizer.step({.lr = 0.1});
    CHECK(moved.value().at(0) == doctest::Approx(before[0] - 0.2).epsilon(0.01));
  }
}

TEST_CASE("wrong arguments throw and leave the parameters unpacked") {
  std::vector<Parameter> list = filled({1, 1});
  CHECK_THROWS_WITH_AS(AdamW{std::vector<NamedParameter>{}}, "optimizer: there is no parameter to train", Error);
  CHECK_THROWS_AS(AdamW(one_group(list), {.beta1 = 1}), Error);
  CHECK_THROWS_AS(AdamW(one_group(list), {.beta2 = -0.1}), Error);
  CHECK_THROWS_AS(AdamW(one_group(list), {.eps = 0}), Error);
  CHECK_THROWS_AS(AdamW(one_group(list), {.weight_decay = kNan}), Error);
  CHECK_THROWS_AS(Sgd(one_group(list), {.momentum = -1}), Error);
  CHECK_THROWS_AS(Sgd(one_group(list), {.nesterov = true}), Error);
  CHECK_FALSE(list[0].packed());

  std::vector<Parameter> other = filled({1}, DType::f64), half = filled({1}, DType::bf16);
  CHECK_THROWS_AS(AdamW({{"a", &list[0]}, {"b", &other[0]}}), Error);
  CHECK_THROWS_AS(AdamW({NamedParameter{"a", &half[0]}}), Error);
  CHECK_FALSE(list[0].packed());

  Sgd optimizer(one_group(list));
  set_grad(list[0], 1);
  CHECK_THROWS_AS(optimizer.step({}), Error);
  CHECK_THROWS_AS(optimizer.step({.lr = -0.1}), Error);
  CHECK_THROWS_AS(optimizer.step({.lr = kInf}), Error);
  CHECK_THROWS_AS(optimizer.step({.lr = 0.1, .clip_norm = -1}), Error);
  CHECK(list[0].has_grad());
  CHECK_THROWS_AS(optimizer.set_counters({}), Error);
}

TEST_CASE("G05 a weight updated between forward and backward") {
  std::vector<Parameter> list = make_parameters({{4, 4}, {4, 4}});
  AdamW optimizer(one_group(list));
  const Tensor x = full({2, 4}, 1);
  for (Parameter& p : list) set_grad(p, 1);
  Tape tape;
  const Var y = sum(matmul(Var(x), list[0]) * 2.0);
  const Var z = sum(square(matmul(matmul(Var(x), list[0]), list[1]))) + y;
  optimizer.step({.lr = 0.1});
  CHECK(has(message_of([&] { tape.backward(z); }), "AdamW.step"));
  CHECK_FALSE(list[0].has_grad());
}
