// Activation checkpointing: the bits of a plain call, with less memory.
#include "autograd/checkpoint.h"

#include <doctest/doctest.h>

#include <functional>

#include "allocation_counter.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "compare.h"
#include "error_message.h"
#include "layers/block.h"

using namespace tapestry;

namespace {

struct Result {
  std::vector<Tensor> tensors;
  RandomScope::State random;
};

void check_same(const Result& a, const Result& b) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a.tensors[i], b.tensors[i]));
  }
  CHECK(a.random.seed == b.random.seed);
  CHECK(a.random.step == b.random.step);
  CHECK(a.random.calls == b.random.calls);
}

using Call = std::function<Var(const Var&, const Var&)>;

// Value, gradients of two inputs and of the weight, and the random state at the end. x is also used outside of f.
Result run(Parameter& w, const Call& f, bool track_second = true) {
  w.zero_grad();
  const RandomScope random(5, 6);
  Tape tape;
  const Var x = tape.watch(random_normal({4, 8}, 1));
  const Var z = track_second ? tape.watch(random_normal({4, 8}, 2)) : Var(random_normal({4, 8}, 2));
  const Var before = x * z;
  const Var y = f(tanh(x), z);
  const Var after = dropout(y, 0.5, next_random_key()) + x + before;
  tape.backward(sum(square(after)));
  Result result{{y.value(), tape.grad(x), w.grad().clone()}, RandomScope::current()};
  if (track_second) result.tensors.push_back(tape.grad(z));
  return result;
}

}  // namespace

TEST_CASE("checkpoint gives the bits of a plain call: values, gradients, dropout masks, random state") {
  Parameter w(random_normal({8, 8}, 3));
  const auto layer = [&w](const Var& x, const Var& z) {
    const Var h = dropout(gelu(matmul(x, w)), 0.3, next_random_key());
    return dropout(matmul(h, w) + x * z + z * h, 0.2, next_random_key()) + z;
  };
  const Call plain = layer;
  const Call checked = [&](const Var& x, const Var& z) { return checkpoint(layer, x, z); };
  for (bool track_second : {true, false}) check_same(run(w, plain, track_second), run(w, checked, track_second));

  SUBCASE("one after the other, and nested") {
    const Call twice = [&](const Var& x, const Var& z) { return layer(layer(x, z), z); };
    const Result right = run(w, twice);
    check_same(right, run(w, [&](const Var& x, const Var& z) { return checked(checked(x, z), z); }));
    check_same(right, run(w, [&](const Var& x, const Var& z) {
                 return checkpoint([&](const Var& a, const Var& b) { return checked(checked(a, b), b); }, x, z);
               }));
    check_same(right, run(w, [&](const Var& x, const Var& z) {
                 return checkpoint([&](const Var& a, const Var& b) { return checked(layer(a, b), b); }, x, z);
               }));
  }
  SUBCASE("second backward of a window adds") {
    const auto window = [&](const Call& f) {
      w.zero_grad();
      for (int micro = 0; micro < 2; ++micro) {
        const RandomScope random(1, static_cast<std::uint64_t>(micro));
        Tape tape;
        tape.backward(sum(square(f(tape.watch(random_normal({4, 8}, 8)), Var(random_normal({4, 8}, 9))))));
      }
      return Result{{w.grad().clone()}, {}};
    };
    check_same(window(plain), window(checked));
  }
}

TEST_CASE("checkpoint of several outputs gives the bits of a plain call, whichever are used") {
  Parameter w(random_normal({8, 8}, 3));
  using Pair = std::array<Var, 2>;
  const auto cell = [&w](const Var& x, const Var& state) -> Pair {
    const Var h = dropout(tanh(matmul(x, w) + state), 0.3, next_random_key());
    return {h, h * x + dropout(state, 0.2, next_random_key())};
  };
  const auto steps = [&](bool checkpointed, int used) {
    w.zero_grad();
    const RandomScope random(5, 6);
    Tape tape;
    const Var x = tape.watch(random_normal({4, 8}, 1)), start = tape.watch(random_normal({4, 8}, 2));
    Var state = start, total = sum(square(x));
    for (int step = 0; step < 3; ++step) {
      const Pair y = checkpointed ? checkpoint(cell, x, state) : cell(x, state);
      static_assert(std::same_as<decltype(checkpoint(cell, x, state)), Pair>);
      if (used & 1) total = total + sum(square(y[0]));
      if (used & 2) total = total + sum(square(y[1]));
      state = y[1];
    }
    if (used == 0) total = total + sum(square(state));
    tape.backward(total);
    return Result{{total.value(), tape.grad(x), tape.grad(start), w.grad().clone()}, RandomScope::current()};
  };
  for (int used = 0; used < 4; ++used) check_same(steps(false, used), steps(true, used));
}

TEST_CASE("checkpoint of several outputs: one of them an input, a constant, the same twice") {
  Tape tape;
  const Var x = tape.watch(tensor({1, 2, 3}));
  const auto y = checkpoint(
      [](const Var& v) {
        const Var square_of = square(v);
        return std::array<Var, 4>{v, Var(tensor({5, 5, 5})), square_of, square_of};
      },
      x);
  tape.backward(sum(y[0] + y[1] + y[2] * y[3]));  // x + 5 + x^4
  CHECK(tape.grad(x).to_vector<float>() == std::vector<float>{5, 33, 109});
  const auto none = checkpoint([](const Var& v) { return std::array<Var, 2>{v, v}; }, Var(tensor({1})));
  CHECK(!none[0].tracked());
}

TEST_CASE("checkpoint of constants trains the Parameters inside, and is a constant where there are none") {
  Parameter w(random_normal({3}, 1));
  Tape tape;
  const Var x = tensor({1, 2, 3});
  const Var y = checkpoint([&w](const Var& v) { return v * Var(w); }, x);
  REQUIRE(y.tracked());
  CHECK(tape.touched_parameters() == std::vector<const detail::ParameterState*>{w.state().get()});
  const Var constant = checkpoint([](const Var& v) { return exp(v); }, x);
  CHECK(!constant.tracked());
  tape.backward(sum(y));
  CHECK(same_bits(w.grad(), x.value()));

  w.zero_grad();
  Tape other;
  const Var no_inputs = checkpoint([&w] { return square(w); });
  other.backward(sum(no_inputs));
  CHECK(w.grad().at(1) == 2 * w.value().at(1));
}

TEST_CASE("checkpoint where nothing is recorded is a plain call") {
  Parameter w(random_normal({3}, 1));
  int calls = 0;
  const auto f = [&](const Var& v) {
    ++calls;
    return v * Var(w);
  };
  CHECK(!checkpoint(f, Var(tensor({1, 2, 3}))).tracked());
  Tape tape;
  {
    const NoGrad no_grad;
    CHECK(!checkpoint(f, Var(tensor({1, 2, 3}))).tracked());
  }
  CHECK(tape.touched_parameters().empty());
  CHECK(calls == 2);
}

TEST_CASE("checkpoint: identity, an input that is not used, an empty one, the same one twice") {
  Tape tape;
  const Var x = tape.watch(tensor({1, 2, 3})), unused = tape.watch(tensor({4, 5, 6}));
  const Var same = checkpoint([](const Var& v) { return v; }, x);
  const Var one = checkpoint([](const Var& a, const Var&, const Var& none) { return none ? none : square(a); }, same,
                             unused, Var());
  const Var product = checkpoint([](const Var& a, const Var& b) { return a * b; }, one, one);
  tape.backward(sum(product));  // x^4
  CHECK(tape.grad(x).to_vector<float>() == std::vector<float>{4, 32, 108});
  CHECK(tape.grad(unused).to_vector<float>() == std::vector<float>{0, 0, 0});
}

TEST_CASE("checkpoint passes gradcheck, Parameters of a module included") {
  const BlockConfig config{.width = 8, .heads = 2};
  Rng rng(3);
  Block block(config, rng);
  const GradcheckReport report =
      gradcheck(block, [&block](const Var& v) { return checkpoint([&](const Var& u) { return block(u); }, v); },
                {random_normal({2, 3, 8}, 1, DType::f64)});
  CHECK_MESSAGE(report.passed(), report.text());
}

TEST_CASE("checkpoint of several outputs passes gradcheck") {
  const auto f = [](const Var& a, const Var& b) { return std::array<Var, 2>{tanh(a) * b, a + square(b)}; };
  const GradcheckReport report =
      gradcheck([&](const Var& a, const Var& b) { return checkpoint(f, a, b); },
                {random_normal({2, 3}, 1, DType::f64), random_normal({2, 3}, 2, DType::f64)});
  CHECK_MESSAGE(report.passed(), report.text());
}

TEST_CASE("checkpoint lowers the peak of memory") {
  constexpr int kLayers = 12, kInside = 8;
  const auto layer = [](const Var& x) {
    Var h = x;
    for (int i = 0; i < kInside; ++i) h = tanh(h);
    return h;
  };
  const auto peak = [&](bool checkpointed) {
    Tape tape;
    Var x = tape.watch(random_normal({64, 1024}, 1));
    const std::int64_t before = memory_stats().current_total;
    reset_peak_memory();
    for (int i = 0; i < kLayers; ++i) x = checkpointed ? checkpoint(layer, x) : layer(x);
    tape.backward(sum(x));
    return memory_stats().peak_total - before;
  };
  const std::int64_t plain = peak(false), checkpointed = peak(true), one = 64 * 1024 * 4;
  CHECK(plain >= kLayers * kInside * one);
  CHECK(checkpointed <= (kLayers + kInside + 6) * one);
}

TEST_CASE("checkpoint allocates nothing from the second step on") {
  Parameter w(random_normal({8, 8}, 3));
  const Tensor input = random_normal({4, 8}, 1);
  const auto layer = [&w](const Var& x) { return gelu(matmul(x, w)); };
  const auto step = [&] {
    w.zero_grad();
    Tape tape;
    const Var inner = checkpoint([&](const Var& v) { return checkpoint(layer, v); }, Var(input));
    const auto two = checkpoint([](const Var& v) { return std::array<Var, 2>{v, square(v)}; }, inner);
    const auto parts = chunk<4>(two[0] * two[1], 1);
    tape.backward(sum(stack({parts[0], parts[3]}, 0)));
  };
  for (int i = 0; i < 3; ++i) step();
  const std::int64_t before = heap_allocations.load();
  for (int i = 0; i < 5; ++i) step();
  CHECK(heap_allocations.load() == before);
}

TEST_CASE("checkpoint: what goes wrong is said, and leaves everything usable") {
  Parameter w(random_normal({3}, 1));
  SUBCASE("a tracked Var that is not an input") {
    Tape tape;
    const Var x = tape.watch(tensor({1, 2, 3})), hidden = tape.watch(tensor({1, 2, 3}));
    const Var y = checkpoint([&](const Var& v) { return v * hidden; }, x);
    const std::string text = message_of([&] { tape.backward(sum(y)); });
    CHECK_MESSAGE(has(text, "belongs to an outer tape"), text);
    CHECK_MESSAGE(has(text, "checkpoint"), text);
  }
  SUBCASE("another shape the second time") {
    Tape tape;
    int calls = 0;
    const Var x = tape.watch(tensor({1, 2, 3}));
    const Var y = checkpoint([&](const Var& v) { return slice(v, 0, 0, calls++ == 0 ? 3 : 2); }, x);
    const std::string text = message_of([&] { tape.backward(sum(y)); });
    CHECK_MESSAGE(has(text, "[3] at first and f32 [2]"), text);
  }
  SUBCASE("a Parameter changed in between, also within another checkpoint") {
    for (bool nested : {false, true}) {
      Tape tape;
      const auto f = [&](const Var& v) { return v * Var(w); };
      const Var x = tape.watch(tensor({1, 2, 3}));
      const Var y = nested ? checkpoint([&](const Var& v) { return square(checkpoint(f, v)); }, x) : checkpoint(f, x);
      w.assign(tensor({3, 2, 1}));
      CHECK(has(message_of([&] { tape.backward(sum(y)); }), "a Parameter that f uses has since been changed"));
      CHECK(!w.has_grad());
    }
  }
  SUBCASE("an input changed in between") {
    Tape tape;
    Tensor value = tensor({1, 2, 3});
    const Var y = checkpoint([](const Var& v) { return exp(v); }, tape.watch(value));
    value.fill(0);
    CHECK(has(message_of([&] { tape.backward(sum(y)); }), "has since been changed"));
  }
  SUBCASE("f throws in forward and in backward: gradients of the window are unset, the random state restored") {
    const RandomScope random(1, 2);
    for (int failing : {0, 1}) {
      Tape tape;
      int calls = 0;
      const auto f = [&](const Var& v) {
        const Var h = dropout(v * Var(w), 0.5, next_random_key());
        if (calls++ == failing) fail("planted");
        return h;
      };
      const std::uint64_t drawn = RandomScope::current().calls;
      const std::string text =
          message_of([&] { tape.backward(sum(checkpoint(f, Var(w)) * checkpoint([&] { return square(w); }))); });
      CHECK_MESSAGE(has(text, "planted"), text);
      CHECK(!w.has_grad());
      CHECK(RandomScope::current().calls == drawn + 1);
      CHECK(Tape::current() == &tape);
    }
    Tape tape;
    tape.backward(sum(square(w)));
    CHECK(w.has_grad());
  }
}
