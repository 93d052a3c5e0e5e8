// The engine by itself: gradients of graphs, several outputs, Parameters, nested tapes, hooks, memory.
#include <doctest/doctest.h>

#include <pthread.h>
#include <functional>
#include <thread>

#include "autograd/module.h"
#include "tests/error_message.h"
#include "tests/scalar_ops.h"

using namespace tapestry;
using namespace tapestry::testing;
using doctest::Approx;

namespace {

double derivative(const std::function<Var(const Var&)>& f, double at) {
  Tape tape;
  const Var x = tape.watch(one(at));
  tape.backward(f(x));
  return tape.grad(x).item();
}

}  // namespace

TEST_CASE("G01 a node used several times gets all of its gradient, once") {
  CHECK(derivative(
            [](const Var& x) {
              const Var y = times(x, 3);
              return add(times(y, 2), times(y, 5));
            },
            2) == 21);
  CHECK(derivative(
            [](const Var& x) {
              const Var a(one(1));
              const Var u = mul(x, a);
              return add(add(mul(x, u), mul(mul(x, x), a)), mul(x, u));
            },
            1) == 6);
  for (int n = 1; n <= 12; ++n) {
    CHECK(derivative(
              [n](const Var& w) {
                std::vector<Var> copies;
                for (int i = 0; i < n; ++i) copies.push_back(times(w, 1.5));
                return sum_of(copies);
              },
              7) == 1.5 * n);
  }
  CHECK(derivative([](const Var& x) { return mul(x, x); }, 1) == 2);
}

TEST_CASE("the same Var twice in one record") {
  Tape tape;
  const Var x = tape.watch(vec({1, 2, 3}));
  const std::array<Var, 4> four = {x, x, x, x};
  tape.backward(total(add(mul(x, x), sum_of(four))));
  CHECK(tape.grad(x).to_vector<double>() == std::vector<double>{6, 8, 10});
}

TEST_CASE("several outputs: each contributes, an unused one arrives empty") {
  for (const auto& [use_sum, use_max, expected] :
       {std::tuple{true, true, std::vector<double>{2, 5, 2}}, std::tuple{true, false, std::vector<double>{2, 2, 2}},
        std::tuple{false, true, std::vector<double>{0, 3, 0}}}) {
    Tape tape;
    const Var x = tape.watch(vec({1, 9, 4}));
    const auto [sum, max] = total_and_max(x);
    Var loss = use_sum ? times(sum, 2) : times(max, 3);
    if (use_sum && use_max) loss = add(loss, times(max, 3));
    tape.backward(loss);
    CHECK(tape.grad(x).to_vector<double>() == expected);
  }
}

TEST_CASE("many inputs, some of them constants or repeated") {
  Tape tape;
  const Var a = tape.watch(vec({1, 2})), b = tape.watch(vec({3, 4}));
  std::vector<Var> parts;
  for (int i = 0; i < 40; ++i) parts.push_back(i % 3 == 0 ? a : i % 3 == 1 ? b : Var(vec({1, 1})));
  tape.backward(total(sum_of(parts)));
  CHECK(tape.grad(a).to_vector<double>() == std::vector<double>{14, 14});
  CHECK(tape.grad(b).to_vector<double>() == std::vector<double>{13, 13});
}

TEST_CASE("Parameters accumulate over tapes until their gradient is unset") {
  Parameter w(vec({2, 3}));
  for (int round = 0; round < 2; ++round) {
    w.zero_grad();
    CHECK_FALSE(w.has_grad());
    CHECK_THROWS_AS(w.grad(), Error);
    for (int micro = 1; micro <= 3; ++micro) {
      Tape tape;
      tape.backward(total(mul(w, w)), 0.5);
      CHECK(w.grad().to_vector<double>() == std::vector<double>{2.0 * micro, 3.0 * micro});
    }
  }
}

TEST_CASE("a tied Parameter is one parameter") {
  struct Pair : Module {
    Parameter a{vec({2})}, b{vec({5})};
    void visit(Visitor& v) override {
      v("a", a);
      v("b", b);
    }
  } pair;
  tie(pair.a, pair.b);
  CHECK(pair.b.value().at(0) == 2);
  const auto list = parameters(pair);
  REQUIRE(list.size() == 1);
  CHECK(list[0].name == "a");
  CHECK(list[0].aliases == std::vector<std::string>{"b"});
  CHECK(parameter_count(pair) == 1);
  Tape tape;
  tape.backward(mul(pair.a, pair.b));
  CHECK(pair.a.grad().at(0) == 4);
  Parameter other(vec({1, 2}));
  CHECK(has(message_of([&] { tie(pair.a, other); }), "tie"));
}

TEST_CASE("micro-batches of unequal size equal one batch") {
  const std::vector<double> data = {0.3, -1.2, 2.5, 0.7, 1.1, -0.4, 0.9};
  Parameter w(vec({0.8}));
  const auto mean_loss = [&](std::size_t begin, std::size_t end) {
    std::vector<Var> terms;
    for (std::size_t i = begin; i < end; ++i) terms.push_back(exp(times(w, data[i])));
    return times(sum_of(terms), 1.0 / static_cast<double>(end - begin));
  };
  {
    Tape tape;
    tape.backward(mean_loss(0, 7));
  }
  const double whole = w.grad().item();
  w.zero_grad();
  for (const auto& [begin, end] : {std::pair{0, 2}, std::pair{2, 3}, std::pair{3, 7}}) {
    Tape tape;
    tape.backward(mean_loss(begin, end), (end - begin) / 7.0);
  }
  CHECK(w.grad().item() == Approx(whole).epsilon(1e-12));
}

TEST_CASE("nested tapes: an inner one within the forward pass leaves the outer gradient right") {
  Parameter w(vec({3}));
  Tape outer;
  const Var x = outer.watch(vec({2}));
  const Var y = mul(x, w);  // makes w a leaf of the outer tape
  double inner_gradient = 0;
  {
    Tape inner;
    const Var z = inner.watch(y.value());
    inner.backward(mul(z, z));
    inner_gradient = inner.grad(z).item();
  }
  CHECK(inner_gradient == 12);
  outer.backward(mul(mul(y, w), Var(vec({inner_gradient}))));  // f = x w^2 * 12
  CHECK(outer.grad(x).item() == 9 * 12);
  CHECK(w.grad().item() == 2 * 2 * 3 * 12);
}

TEST_CASE("nested tapes: recomputing within backward, as activation checkpointing does") {
  Parameter w(vec({3}));
  const auto body = [&w](const Var& x) { return mul(mul(x, w), x); };  // w x^2
  const auto checkpointed = [&](const Var& x) {
    Tensor y;
    {
      NoGrad no_grad;
      y = body(x).value();
    }
    return record(
        "checkpointed", y,
        [&body, x = save(x)](const Tensor& dy, Grad dx) {
          Tape inner;
          const Var again = inner.watch(x());
          inner.backward(body(again), dy.item());
          dx.pass(inner.grad(again));
        },
        x);
  };
  Tape tape;
  const Var x = tape.watch(vec({2}));
  tape.backward(mul(checkpointed(times(x, 2)), w));  // (w (2x)^2) w = 4 w^2 x^2
  CHECK(tape.grad(x).item() == 8 * 9 * 2);
  CHECK(w.grad().item() == 2 * 4 * 3 * 4);
}

TEST_CASE("G13 NoGrad within a training scope, nested, and after an exception") {
  Tape tape;
  const Var x = tape.watch(vec({2}));
  {
    NoGrad outer;
    { NoGrad inner; }
    CHECK_FALSE(times(x, 2).tracked());
  }
  CHECK(times(x, 2).tracked());
  try {
    NoGrad guard;
    throw 1;
  } catch (int) {}
  const Var y = times(x, 2);
  CHECK(y.tracked());
  tape.backward(y);
  CHECK(tape.grad(x).item() == 2);
  bool recorded_in_thread = true;
  std::thread([&] { recorded_in_thread = Tape::current() != nullptr; }).join();
  CHECK_FALSE(recorded_in_thread);
}

TEST_CASE("detach, watch and grad") {
  Tape tape;
  const Var x = tape.watch(vec({3})), unused = tape.watch(vec({1, 2}));
  const Var y = mul(x, x);
  const Var cut = y.detach();
  CHECK_FALSE(cut.tracked());
  CHECK(cut.value().storage() == y.value().storage());
  tape.backward(mul(cut, y));
  CHECK(tape.grad(x).item() == 9 * 6);
  CHECK(tape.grad(unused).to_vector<double>() == std::vector<double>{0, 0});
  CHECK(has(message_of([&] { tape.grad(y); }), "watch()"));
  CHECK(has(message_of([&] { tape.grad(cut); }), "watch()"));
}

TEST_CASE("hooks see each complete gradient once") {
  Parameter w(vec({2}));
  Tape tape;
  const Var x = tape.watch(vec({3}));
  const Var y = mul(x, w);
  int calls = 0;
  double at_y = 0, at_x = 0, at_w = 0;
  tape.hook(y, [&](const Tensor& g) { ++calls, at_y = g.item(); });
  tape.hook(x, [&](const Tensor& g) { ++calls, at_x = g.item(); });
  tape.hook(Var(w), [&](const Tensor& g) { ++calls, at_w = g.item(); });
  CHECK(has(message_of([&] { tape.hook(y.detach(), [](const Tensor&) {}); }), "constant"));
  tape.backward(add(mul(y, y), times(y, 5)));
  CHECK(calls == 3);
  CHECK(at_y == 2 * 6 + 5);
  CHECK(at_x == 2 * 17);
  CHECK(at_w == 3 * 17);
}

TEST_CASE("passed gradients are shared until somebody writes") {
  Tape tape;
  const Var a = tape.watch(vec({1, 2})), b = tape.watch(vec({3, 4}));
  const Var s = add(a, b);                    // hands one storage to a and b
  const Var loss = total(add(s, mul(a, a)));  // and a gets more
  tape.backward(loss);
  CHECK(tape.grad(a).to_vector<double>() == std::vector<double>{3, 5});
  CHECK(tape.grad(b).to_vector<double>() == std::vector<double>{1, 1});
}

namespace {
double chain_gradient = 0;
void* run_chain(void*) {
  Tape tape;
  const Var x = tape.watch(one(1));
  Var y = x;
  for (int i = 0; i < 200000; ++i) y = add(y, times(y, 1e-6));
  tape.backward(y);
  chain_gradient = tape.grad(x).item();
  return nullptr;
}
}  // namespace

TEST_CASE("G06 a chain of 200,000 ops in a thread with a 512 KB stack") {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  REQUIRE(pthread_attr_setstacksize(&attributes, 512 * 1024) == 0);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, &attributes, run_chain, nullptr) == 0);
  pthread_join(thread, nullptr);
  CHECK(chain_gradient == Approx(1.2214026).epsilon(1e-7));
}

TEST_CASE("G17 nothing of a step stays alive, also when the losses are kept") {
  Parameter w(vec({1.5, -2}));
  std::vector<Tensor> kept;
  std::int64_t baseline = 0;
  for (int step = 0; step < 1000; ++step) {
    w.zero_grad();
    {
      Tape tape;
      const Var loss = total(mul(w, exp(w)));
      tape.backward(loss);
      kept.push_back(loss.value());
    }
    const std::int64_t now = memory_stats().current_total - static_cast<std::int64_t>(kept.size()) * 64;
    if (step == 2) baseline = now;
    if (step > 2) REQUIRE(now == baseline);
  }
}

TEST_CASE("activations are freed while backward walks") {
  Tape tape;
  const Var x = tape.watch(full({1000, 100}, 1.0, DType::f64));
  Var y = x;
  for (int i = 0; i < 20; ++i) y = exp(times(y, 0.1));
  const Var loss = total(y);
  y = Var();
  const std::int64_t before = memory_stats().current_total;
  reset_peak_memory();
  tape.backward(loss);
  // One gradient at a time on top of what forward kept, not one for each record.
  CHECK(memory_stats().peak_total - before <= 3 * 1000 * 100 * 8 * 9 / 8);
  CHECK(memory_stats().current_total < before);
}
