// What the tape refuses and reports, and that it stays usable afterwards.
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <thread>

#include "autograd/autocast.h"
#include "autograd/module.h"
#include "tests/error_message.h"
#include "tests/scalar_ops.h"

using namespace tapestry;
using namespace tapestry::testing;

TEST_CASE("a Var of a dead tape, of another thread, of another depth") {
  Var stale;
  {
    Tape tape;
    stale = times(tape.watch(vec({1})), 2);
    std::string seen;
    std::thread([&] {
      Tape own;
      seen = message_of([&] { times(stale, 2); });
    }).join();
    CHECK(has(seen, "another thread"));
    {
      Tape inner;
      CHECK(has(message_of([&] { times(stale, 2); }), "outer tape"));
      NoGrad no_grad;
      CHECK_FALSE(times(stale, 2).tracked());
    }
  }
  CHECK(has(message_of([&] { times(stale, 2); }), "times: input 0"));
  Tape tape;
  CHECK(has(message_of([&] { mul(Var(vec({1})), stale); }), "mul: input 1"));
  CHECK_NOTHROW(mul(stale.detach(), tape.watch(vec({1}))));
  NoGrad no_grad;
  CHECK_NOTHROW(times(stale, 2));
}

TEST_CASE("G07 backward twice, from a constant, from a non-scalar") {
  Tape tape;
  const Var x = tape.watch(vec({3}));
  const Var y = mul(x, x);
  CHECK(has(message_of([&] { tape.backward(Var(one(1))); }), "constant"));
  const Var wide = tape.watch(vec({1, 2}));
  CHECK(has(message_of([&] { tape.backward(wide); }), "[2]"));
  tape.backward(y);
  CHECK(has(message_of([&] { tape.backward(y); }), "rebuild the forward"));
  CHECK(tape.grad(x).item() == 6);
}

TEST_CASE("G05 a value changed after it was saved") {
  SUBCASE("an output") {
    Tape tape;
    const Var x = tape.watch(vec({0}));
    Var y = exp(x);
    Tensor view = y.value();
    view.mutable_data<double>()[0] *= 2;
    const std::string text = message_of([&] { tape.backward(y); });
    CHECK(has(text, "backward of exp"));
    CHECK(has(text, "changed"));
  }
  SUBCASE("through a view, with the writer's name") {
    Tape tape;
    Tensor data = vec({1, 2, 3, 4});
    const Var x = tape.watch(data);
    const Var y = total(mul(x, x));
    Tensor rows = data.rows(2, 1);
    {
      const WriterScope writer("AdamW.step");
      rows.fill(7);
    }
    const std::string text = message_of([&] { tape.backward(y); });
    CHECK(has(text, "backward of mul"));
    CHECK(has(text, "AdamW.step"));
  }
  SUBCASE("a Parameter") {
    Parameter w(vec({2}));
    Tape tape;
    const Var y = mul(w, w);
    w.assign(vec({3}));
    CHECK(has(message_of([&] { tape.backward(y); }), "Parameter::assign"));
    CHECK_FALSE(w.has_grad());
  }
}

TEST_CASE("an exception in forward, in backward and in a hook leaves everything usable") {
  Parameter w(vec({2}));
  const auto failing = [](const Var& x) {
    return record(
        "failing", x.value(), [](const Tensor&, Grad) { throw std::runtime_error("planted"); }, x);
  };
  const auto try_once = [&](const std::function<void(Tape&)>& body) {
    bool thrown = false;
    try {
      Tape tape;
      body(tape);
    } catch (const std::exception&) {
      thrown = true;
    }
    CHECK(thrown);
    CHECK(Tape::current() == nullptr);
    CHECK(Autocast::current() == DType::f32);
    CHECK_FALSE(w.has_grad());
    Tape tape;
    tape.backward(mul(w, w));
    CHECK(w.grad().item() == 4);
    w.zero_grad();
  };
  try_once([&](Tape&) {
    const Var y = mul(w, w);
    throw std::runtime_error("in forward");
  });
  try_once([&](Tape& tape) { tape.backward(mul(mul(w, w), failing(w))); });
  try_once([&](Tape& tape) {
    const Autocast scope(DType::bf16);
    tape.backward(mul(mul(w, w), failing(w)));
  });
  try_once([&](Tape& tape) {
    const Var y = mul(w, w);
    tape.hook(y, [](const Tensor&) { throw std::runtime_error("in a hook"); });
    tape.backward(mul(y, w));
  });
  try_once([&](Tape& tape) {
    Tape inner;
    (void)tape;
    throw std::runtime_error("with two tapes alive");
  });
}

TEST_CASE("a failed backward unsets the whole window") {
  Parameter w(vec({2}));
  {
    Tape tape;
    tape.backward(mul(w, w));
  }
  REQUIRE(w.has_grad());
  Tape tape;
  const Var y = mul(w, w);
  w.assign(vec({3}));
  CHECK_THROWS_AS(tape.backward(y), Error);
  CHECK_FALSE(w.has_grad());
}

TEST_CASE("a backward function that forgets to claim, or claims twice, is named") {
  for (int claims : {0, 2}) {
    Tape tape;
    const Var x = tape.watch(vec({1}));
    const Var y = record(
        "careless", x.value().clone(),
        [claims](const Tensor& dy, Grad dx) {
          for (int i = 0; i < claims; ++i) write_grad(dy, dx, [](auto) { return 1.0; });
        },
        x);
    const std::string text = message_of([&] { tape.backward(y); });
    CHECK(has(text, "backward of careless"));
    CHECK(has(text, "exactly once"));
  }
}

TEST_CASE("a Parameter that visit() forgets is reported") {
  struct Forgetful : Module {
    Parameter seen{vec({1})}, forgotten{vec({1, 2, 3})};
    void visit(Visitor& v) override { v("seen", seen); }
    std::string_view kind() const override { return "Forgetful"; }
  } module;
  Tape tape;
  const Var y = mul(module.seen, module.seen);
  CHECK_NOTHROW(check_all_visited(module, tape));
  const Var z = mul(module.forgotten, module.forgotten);
  const std::string text = message_of([&] { check_all_visited(module, tape); });
  CHECK(has(text, "Forgetful"));
  CHECK(has(text, "[3]"));
}

TEST_CASE("two members of one name are rejected, train() reaches every child") {
  struct Child : Module {
    Parameter p{vec({1})};
    void visit(Visitor& v) override { v("p", p); }
  };
  struct Parent : Module {
    std::vector<Child> children = std::vector<Child>(2);
    bool clash = false;
    void visit(Visitor& v) override {
      v("children", children);
      if (clash) v("children.1", children[0]);
    }
  } parent;
  const auto list = parameters(parent);
  REQUIRE(list.size() == 2);
  CHECK(list[1].name == "children.1.p");
  parent.eval();
  CHECK_FALSE(parent.training());
  CHECK_FALSE(parent.children[1].training());
  parent.train();
  CHECK(parent.children[1].training());
  parent.clash = true;
  CHECK(has(message_of([&] { parameters(parent); }), "children.1.p"));
}

TEST_CASE("a Tape destroyed out of order does not disturb the others") {
  auto first = std::make_optional<Tape>();
  auto second = std::make_optional<Tape>();
  first.reset();
  {
    const Var x = second->watch(vec({2}));
    second->backward(mul(x, x));
    CHECK(second->grad(x).item() == 4);
  }
  second.reset();
  CHECK(Tape::current() == nullptr);
}
