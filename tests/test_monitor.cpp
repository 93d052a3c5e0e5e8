// Monitor: names the record, layer and element where NaN or inf begins, counts exactly, and changes nothing it watches.
#include "autograd/monitor.h"

#include <doctest/doctest.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <optional>

#include "autograd/checkpoint.h"
#include "core/parallel.h"
#include "layers/linear.h"
#include "tests/allocation_counter.h"
#include "tests/compare.h"
#include "tests/error_message.h"
#include "tests/trainer_testing.h"

using namespace tapestry;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ValueRange range_of(const Tensor& t) {
  ValueRange range;
  TAP_DISPATCH(value_range, t, range);
  return range;
}

void check_equal(const ValueRange& a, const ValueRange& b) {
  CHECK(a.elements == b.elements);
  CHECK(a.nans == b.nans);
  CHECK(a.positive_infs == b.positive_infs);
  CHECK(a.negative_infs == b.negative_infs);
  CHECK(a.zeros == b.zeros);
  CHECK(a.subnormals == b.subnormals);
  CHECK(a.first_nonfinite == b.first_nonfinite);
  CHECK((a.first_value == b.first_value || std::isnan(a.first_value + b.first_value)));
  CHECK(a.min == b.min);
  CHECK(a.max == b.max);
}

// The same element by element, in double.
ValueRange reference(const Tensor& t, double smallest_normal) {
  ValueRange r{.elements = t.numel(), .min = kInf, .max = -kInf};
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const double x = t.at(i);
    r.zeros += x == 0;
    r.subnormals += x != 0 && std::abs(x) < smallest_normal;
    r.nans += std::isnan(x);
    r.positive_infs += x == kInf;
    r.negative_infs += x == -kInf;
    if (std::isfinite(x)) {
      r.min = std::min(r.min, x);
      r.max = std::max(r.max, x);
    } else if (r.first_nonfinite < 0) {
      r.first_nonfinite = i;
      r.first_value = x;
    }
  }
  return r;
}

// h = relu(x w) v, with the layers "body.up" and "body.down".
class Body : public Module {
 public:
  void visit(Visitor& v) override {
    v("up", up);
    v("down", down);
  }
  Rng rng{3};
  Linear up{2, 3, rng}, down{3, 2, rng};
};
class Model : public Module {
 public:
  void visit(Visitor& v) override { v("body", body); }
  Body body;
};

Monitor::Row row(const Monitor& monitor, const std::string& op, const std::string& layer) {
  for (const Monitor::Row& r : monitor.rows())
    if (r.op == op && r.layer == layer) return r;
  FAIL("no row for ", op, " ", layer);
  return {};
}

}  // namespace

TEST_CASE("value_range: zeros, subnormals, NaN and inf of hand-made tensors, exact in every type") {
  struct Type {
    DType dtype;
    double smallest_normal, smallest;
  };
  for (const Type& type : {Type{DType::f64, 0x1p-1022, 0x1p-1074}, Type{DType::f32, 0x1p-126, 0x1p-149},
                           Type{DType::f16, 0x1p-14, 0x1p-24}, Type{DType::bf16, 0x1p-126, 0x1p-133}}) {
    CAPTURE(name_of(type.dtype));
    const double biggest = largest_finite(type.dtype), tiny = type.smallest, below = type.smallest_normal - tiny;
    const Tensor x =
        tensor({0, -0.0, tiny, -tiny, below, type.smallest_normal, 1.5, -biggest, biggest}, {3, 3}, type.dtype);
    const ValueRange finite = range_of(x);
    check_equal(finite, {.elements = 9, .zeros = 2, .subnormals = 3, .min = -biggest, .max = biggest});
    CHECK(finite.finite());
    CHECK(finite.largest() == biggest);
    const ValueRange mixed = range_of(tensor({1, -2, -kInf, kNan, kInf, 0, kNan}, {7}, type.dtype));
    check_equal(mixed, {.elements = 7,
                        .nans = 2,
                        .positive_infs = 1,
                        .negative_infs = 1,
                        .zeros = 1,
                        .first_nonfinite = 2,
                        .first_value = -kInf,
                        .min = -2,
                        .max = 1});
    const ValueRange none = range_of(tensor({kNan}, {1}, type.dtype));
    CHECK(none.min > none.max);
    CHECK(none.largest() == 0);
    CHECK(range_of(empty({0}, type.dtype)).elements == 0);
    check_equal(range_of(tensor({-3, -2}, {2}, type.dtype)), {.elements = 2, .min = -3, .max = -2});
  }
  check_error([] { range_of(zeros({2}, DType::i32)); }, {"value_range", "floating", "i32"});
}

TEST_CASE("value_range: every size, against a loop, for any number of threads") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const double smallest_normal = dtype == DType::f16 ? 0x1p-14 : dtype == DType::f64 ? 0x1p-1022 : 0x1p-126;
    for (const std::int64_t n : {1, 31, 33, 4095, 4097, 70001}) {
      Tensor wide = random_normal({n}, static_cast<std::uint64_t>(n), DType::f64);
      double* x = wide.mutable_data<double>();
      for (std::int64_t i = 0; i < n; i += 7) x[i] *= 1e-6;
      for (std::int64_t i = 3; i < n; i += 11) x[i] = 0;
      for (const bool finite : {true, false}) {
        if (!finite)
          for (std::int64_t i = n / 2; i < n; i += 977) x[i] = i % 3 == 0 ? kNan : i % 3 == 1 ? kInf : -kInf;
        const Tensor t = wide.to(dtype);
        const ValueRange expected = reference(t, smallest_normal);
        for (const int threads : {1, 3}) {
          set_num_threads(threads);
          check_equal(range_of(t), expected);
        }
        set_num_threads(0);
      }
    }
  }
}

TEST_CASE("value_range: counts beyond 16 bits, and where the first of many lies") {
  Tensor t = zeros({300000}, DType::f16);
  CHECK(range_of(t).zeros == 300000);
  t.fill(kInf);
  CHECK(range_of(t).positive_infs == 300000);
  CHECK(range_of(t).first_nonfinite == 0);
}

TEST_CASE("Values keep the magnitude that came closest to its type's limit") {
  Monitor::Values values;
  values.add(range_of(tensor({-8, 2})), DType::f32);
  CHECK(values.largest == 8);
  values.add(range_of(tensor({4, 2}, {2}, DType::f16)), DType::f16);
  CHECK(values.largest == 4);
  CHECK(values.limit == 65504);
  values.add(range_of(tensor({1e6, kNan})), DType::f32);
  CHECK(values.largest == 4);
  CHECK(values.tensors == 3);
  CHECK(values.nonfinite_tensors == 1);
  CHECK(values.elements == 6);
  CHECK(values.nans == 1);
}

TEST_CASE("forward: the op, its layer and the element where inf begins, with the operands") {
  Model model;
  model.body.up.weight.assign(tensor({1, 0, 0, 0, 1, 0}, {2, 3}));
  model.body.up.bias->assign(zeros({3}));
  Monitor monitor(model);
  Tape tape;
  const Var x(tensor({1, 2, 3, 100}, {2, 2}));
  const Var h = exp(model.body.up(x));  // exp(100) overflows at [1, 1]
  const Var loss = sum(model.body.down(h));
  REQUIRE(monitor.first());
  const Finding f = *monitor.first();
  CHECK(f.op == "exp");
  CHECK(f.layer == "body.up");
  CHECK(f.after);
  CHECK(!f.backward);
  CHECK(!f.given);
  CHECK(f.tensor.name == "output 0");
  CHECK(f.tensor.dtype == DType::f32);
  CHECK(f.tensor.shape == Shape{2, 3});
  CHECK(f.tensor.range.first_nonfinite == 4);
  REQUIRE(f.operands.size() == 2);
  CHECK(f.operands[0].range.min == 0);
  CHECK(f.operands[0].range.max == 100);
  CHECK(f.text() ==
        "exp after body.up: output 0 f32 [2, 3] from 1 to 20.09 with 1 inf, first inf at [1, 1] (element 4 of 6); "
        "input 0 f32 [2, 3] from 0 to 100");
  // What follows does not take its place, in backward neither.
  tape.backward(loss);
  CHECK(monitor.first()->text() == f.text());
  CHECK(row(monitor, "exp", "body.up").output.nonfinite_tensors == 1);
  CHECK(row(monitor, "linear", "body.down").output.nonfinite_tensors == 1);
  CHECK(row(monitor, "linear", "body.up").output.nonfinite_tensors == 0);
  const std::string table = monitor.overflow_text();
  CHECK(has(table, "exp after body.up                                 f32        1 of 1         0         1"));
  CHECK(has(table,
            "linear at body.up                                 f32        0 of 1         0         0        1 of 1"));
}

TEST_CASE("forward: a NaN that came in is named as the input it came by") {
  Model model;
  model.body.up.weight.assign(tensor({1, 0, 0, 0, 1, kNan}, {2, 3}));
  {
    Monitor monitor(model);
    Tape tape;
    model.body.up(Var(tensor({1, 2}, {1, 2})));
    REQUIRE(monitor.first());
    CHECK(monitor.first()->given);
    CHECK(monitor.first()->tensor.name == "input 1 (body.up.weight)");
    CHECK(monitor.first()->tensor.range.first_nonfinite == 5);
    CHECK(has(monitor.first()->text(),
              "linear at body.up: input 1 (body.up.weight) f32 [2, 3] from 0 to 1 with 1 NaN, "
              "first NaN at [1, 2] (element 5 of 6), which it was given; input 0 "));
  }
  Monitor monitor;
  Tape tape;
  const Var x = tape.watch(tensor({1, 2}));
  (void)(x * Var(tensor({kInf, 1})));
  REQUIRE(monitor.first());
  CHECK(has(monitor.first()->text(),
            "mul: input 1 (not made by an op) f32 [2] from 1 to 1 with 1 inf, first inf at [0]"));
}

TEST_CASE("forward: -inf in a mask is on purpose, the NaN it leads to is not") {
  Monitor monitor;
  const Tensor hidden = from_values<std::uint8_t>({0, 1, 1, 1}, {2, 2}), half = from_values<std::uint8_t>({0, 1}, {2});
  {
    Tape tape;
    const Var x = tape.watch(tensor({1, 2, 3, 4}, {2, 2}));
    const Var fine = softmax(masked_fill(x, half, -kInf)) + Var(zeros({2, 2}));
    const Var added = logsumexp(x + Var(tensor({0, -kInf}, {2})));
    tape.backward(sum(fine) + sum(added));
    CHECK(!monitor.first());
    CHECK(row(monitor, "masked_fill", "").output.infs == 2);
    CHECK(row(monitor, "masked_fill", "").output.nonfinite_tensors == 1);
  }
  Tape tape;
  const Var x = tape.watch(tensor({1, 2, 3, 4}, {2, 2}));
  const Var scores = masked_fill(x, hidden, -kInf);
  (void)(scores - scores);  // -inf - -inf
  REQUIRE(monitor.first());
  CHECK(has(monitor.first()->text(), "sub: output 0 f32 [2, 2] from 0 to 0 with 3 NaN, first NaN at [0, 1]"));
  CHECK(has(monitor.first()->text(), "input 0 f32 [2, 2] from 1 to 1 with 3 -inf"));
}

TEST_CASE("backward: a gradient that is not finite where the forward pass was") {
  Model model;
  model.body.up.weight.assign(tensor({1, 0, 0, 0, 1, 0}, {2, 3}));
  model.body.up.bias->assign(zeros({3}));
  Monitor monitor(model);
  SUBCASE("inf at sqrt(0)") {
    Tape tape;
    tape.backward(sum(sqrt(model.body.up(Var(tensor({4, 1}, {1, 2}))))));
    REQUIRE(monitor.first());
    CHECK(monitor.first()->backward);
    CHECK(monitor.first()->text() ==
          "backward of sqrt after body.up: the gradient of input 0 f32 [1, 3] from 0.25 to 0.5 with 1 inf, first inf "
          "at [0, 2] (element 2 of 3); dy 0 f32 [1, 3] from 1 to 1");
    CHECK(row(monitor, "sqrt", "body.up").gradient.nonfinite_tensors == 0);
    CHECK(row(monitor, "linear", "body.up").gradient.nonfinite_tensors == 1);
    CHECK(row(monitor, "", "body.up.weight").gradient.nonfinite_tensors == 1);
    CHECK(has(monitor.overflow_text(), "gradient of body.up.weight"));
  }
  SUBCASE("0 * inf where the branch was not taken") {
    Tape tape;
    const Var h = model.body.up(Var(tensor({4, 1}, {1, 2})));
    const Tensor taken = from_values<std::uint8_t>({1, 1, 0}, {1, 3});
    tape.backward(sum(where(taken, sqrt(h), Var(zeros({1, 3})))));
    REQUIRE(monitor.first());
    CHECK(monitor.first()->op == "sqrt");
    CHECK(std::isnan(monitor.first()->tensor.range.first_value));
    CHECK(monitor.first()->tensor.range.first_nonfinite == 2);
  }
  SUBCASE("the seed") {
    Tape tape;
    tape.backward(sum(model.body.up(Var(tensor({4, 1}, {1, 2})))), 1e300);
    REQUIRE(monitor.first());
    CHECK(has(monitor.first()->text(),
              "backward of sum after body.up: dy 0 f32 [] without a finite value with 1 inf, "
              "first inf at [] (element 0 of 1), which it was given"));
  }
}

TEST_CASE("f16: overflow at 65504, and headroom that is exact") {
  Monitor monitor;
  Tape tape;
  const Var x = tape.watch(tensor({200, -100, 0, 0x1p-20}, {4}, DType::f16));
  const Var y = x * Var(tensor({100, 655.04, 1, 1}, {4}, DType::f16));
  CHECK(!monitor.first());
  const Monitor::Row mul = monitor.rows().front();
  CHECK(mul.dtype == DType::f16);
  CHECK(mul.output.largest == 65504);
  CHECK(mul.output.limit == 65504);
  CHECK(mul.output.zeros == 1);
  CHECK(mul.output.subnormals == 1);
  CHECK(mul.output.elements == 4);
  const std::string table = monitor.headroom_text();
  CHECK(has(table, "mul                                               f16   6.55e+04    2^0.0     25%     25%"));
  (void)(y * Var(tensor({1, 1.01, 1, 1}, {4}, DType::f16)));
  REQUIRE(monitor.first());
  CHECK(monitor.first()->tensor.dtype == DType::f16);
  CHECK(monitor.first()->tensor.range.first_nonfinite == 1);
  CHECK(monitor.first()->tensor.range.first_value == -kInf);
}

TEST_CASE("what autograd/README.md shows") {
  Model model;
  convert(model, DType::f16);
  model.body.up.weight.assign(tensor({1, 0, 0.5, 0, 1, 0}, {2, 3}));
  model.body.down.weight.assign(full({3, 2}, 0x1p-12));
  Monitor monitor(model);
  for (const double size : {100.0, 300.0}) {
    Tape tape;
    const Var x(full({4, 2}, size, DType::f16));
    tape.backward(sum(model.body.down(square(model.body.up(x)))));
    if (monitor.first()) std::cout << monitor.first()->text() << '\n';
    std::cout << monitor.headroom_text();
    CHECK(monitor.first().has_value() == (size == 300));
  }
}

TEST_CASE("counts add up over steps; next_step looks for a first one again; clear forgets") {
  Model model;
  Monitor monitor(model);
  for (int step = 0; step < 3; ++step) {
    zero_grad(model);
    Tape tape;
    const Var x = neg(tape.watch(full({5, 2}, step == 1 ? kInf : 1)));  // before the first layer, in each step
    tape.backward(sum(model.body.down(relu(model.body.up(x)))));
    CHECK(monitor.first().has_value() == (step == 1));
    monitor.next_step();
    CHECK(!monitor.first());
  }
  CHECK(monitor.rows().size() == 5 + 4);  // neg, linear, relu, linear, sum; two weights and biases
  CHECK(row(monitor, "neg", "").output.tensors == 3);
  const Monitor::Row up = row(monitor, "linear", "body.up");
  CHECK(up.output.tensors == 3);
  CHECK(up.output.nonfinite_tensors == 1);
  CHECK(up.output.elements == 45);
  CHECK(up.output.nans + up.output.infs == 15);
  CHECK(up.gradient.tensors == 3);
  CHECK(row(monitor, "relu", "body.up").after);
  CHECK(row(monitor, "", "body.down.bias").gradient.tensors == 3);
  CHECK(row(monitor, "", "body.down.bias").gradient.largest == 5);
  monitor.clear();
  CHECK(monitor.rows().empty());
  CHECK(monitor.overflow_text() == "");
}

TEST_CASE("Monitors nest, and what one recorded another can watch in backward") {
  Monitor outer;
  Tape tape;
  const Var x = tape.watch(tensor({0, 1}));
  Var y;
  {
    Monitor inner;
    y = sqrt(x);
    CHECK(Monitor::current() == &inner);
    CHECK(inner.rows().size() == 1);
  }
  CHECK(Monitor::current() == &outer);
  CHECK(outer.rows().empty());
  tape.backward(sum(y));
  REQUIRE(outer.first());
  CHECK(outer.first()->op == "sqrt");
}

TEST_CASE("an exception in a step leaves the monitor able to go on") {
  Model model;
  Monitor monitor(model);
  for (const bool fails : {true, false}) {
    Tape tape;
    const Var h = relu(model.body.up(neg(tape.watch(full({1, 2}, 1)))));
    const Var y = record(
        "faulty", h.value().clone(),
        [fails](const Tensor& dy, Grad dx) {
          TAP_CHECK(!fails, "broken");
          dx.pass(dy);
        },
        h);
    if (fails) {
      check_error([&] { tape.backward(sum(y)); }, {"broken"});
      check_error([&] { (void)matmul(h, h); }, {"matmul"});
    } else {
      tape.backward(sum(y));
    }
  }
  CHECK(!monitor.first());
  CHECK(row(monitor, "neg", "").output.tensors == 2);
  CHECK(row(monitor, "faulty", "body.up").gradient.tensors == 2);
  CHECK(row(monitor, "linear", "body.up").gradient.tensors == 1);
}

TEST_CASE("inside a checkpoint the record is named once backward computes it again") {
  Model model;
  Monitor monitor(model);
  const auto inside = [&](const Var& v) {
    const Var scaled = v * Var(full({2}, 1e30));
    return model.body.down(exp(model.body.up(scaled * scaled)));
  };
  Tape tape;
  const Var x = tape.watch(full({1, 2}, 1));
  const Var y = checkpoint(inside, x);
  REQUIRE(monitor.first());
  CHECK(monitor.first()->op == "checkpoint");
  tape.backward(sum(y));
  CHECK(monitor.first()->op == "mul");
  CHECK(!monitor.first()->backward);
  CHECK(monitor.first()->layer == "");
}

TEST_CASE("watching changes no bit of a training run and allocates nothing once it is warm") {
  const auto train = [](bool watched) {
    testing::Run run(7, {.max_steps = 6, .accumulate = 2, .seed = 5});
    std::optional<Monitor> monitor;
    if (watched) monitor.emplace(run.net);
    for (int i = 0; i < 4; ++i) run.trainer().step();
    const std::int64_t before = heap_allocations;
    for (int i = 0; i < 2; ++i) run.trainer().step();
    if (watched) {
      CHECK(heap_allocations == before);
      CHECK(monitor->rows().size() == 5 + 3);  // linear, gelu_tanh, dropout, linear, cross_entropy; three Parameters
    }
    std::vector<Tensor> weights;
    for (const NamedParameter& p : parameters(run.net)) weights.push_back(p.parameter->value().clone());
    return weights;
  };
  const std::vector<Tensor> plain = train(false), watched = train(true);
  REQUIRE(plain.size() == watched.size());
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], watched[i]));
}

TEST_CASE("find_first_nan: replays a step and names the record; without one it says so") {
  testing::Run run(7, {.max_steps = 6, .accumulate = 2, .seed = 5});
  check_error([&] { run.trainer().replay_step(); }, {"replay_step", "a step that is done"});
  run.trainer().step();
  const Tensor before = run.net.up.value().clone();
  CHECK(!find_first_nan(run.net, [&] { run.trainer().replay_step(); }));
  CHECK(!run.net.up.has_grad());
  CHECK(same_bits(run.net.up.value(), before));

  run.net.down.mutable_value().fill(1e38);
  const StepInfo info = run.trainer().step();
  CHECK(info.skipped);
  const auto finding = find_first_nan(run.net, [&] { run.trainer().replay_step(); });
  REQUIRE(finding);
  CHECK(finding->layer == "down");
  CHECK(finding->op == "linear");
  CHECK(!run.net.up.has_grad());
  CHECK(run.trainer().current_step() == 2);

  // An error of the step comes through only where nothing was found.
  check_error([&] { find_first_nan(run.net, [] { fail("no data"); }); }, {"no data"});
  const auto found = find_first_nan(run.net, [&] {
    Tape tape;
    (void)log(Var(run.net.bias) - Var(full({testing::kHidden}, 100)));
    fail("no data");
  });
  REQUIRE(found);
  CHECK(found->op == "log");
}

TEST_CASE("a replayed step draws the random numbers of the step itself") {
  testing::Run run(7, {.max_steps = 6, .accumulate = 2, .seed = 5});
  std::vector<double> losses;
  const auto loss = run.functions.micro_loss;
  run.functions.micro_loss = [&](std::int64_t i) {
    const LossResult result = loss(i);
    losses.push_back(result.loss.item());
    return LossResult{result.loss * Var(scalar(kNan)), result.valid_tokens};  // so that the step is skipped
  };
  CHECK(run.trainer().step().skipped);
  run.trainer().replay_step();
  CHECK(run.trainer().step().skipped);
  REQUIRE(losses.size() == 6);
  for (const std::size_t i : {0, 1}) CHECK(losses[i] == losses[i + 2]);
  CHECK(losses[0] != losses[1]);
  CHECK(losses[0] != losses[4]);
}
