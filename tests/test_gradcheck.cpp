// The checker is checked: right backward functions pass, planted faults are found.
#include <doctest/doctest.h>

#include <stdexcept>

#include "tests/planted_ops.h"

using namespace tapestry;
using namespace tapestry::planted;

namespace {

// y = x * weight, with a second Parameter that visit() may forget.
struct Scaled : Module {
  explicit Scaled(bool forget = false) : weight(tensor({0.1, 0.7, -1.3})), shift(tensor({1, 2, 3})), forgets(forget) {}
  Var operator()(const Var& x) const { return square_times(product_like(x, weight), Var(shift), Bug::none); }
  static Var product_like(const Var& x, const Parameter& w) { return square_times(x, Var(w), Bug::none); }
  void visit(Visitor& v) override {
    v("weight", weight);
    if (!forgets) v("shift", shift);
  }
  Parameter weight, shift;
  bool forgets;
};

}  // namespace

TEST_CASE("G14 a correct op in double agrees below 1e-7") {
  const GradcheckReport report = gradcheck(with(cube, Bug::none), {normal({3, 5})}, {.step = 1e-6});
  CHECK_MESSAGE(report.passed(), report.text());
  CHECK(report.worst.error() < 1e-7);
  CHECK(report.compared == 15 * 15);
  CHECK(report.kinks == 0);
}

TEST_CASE("G14 a backward that is off by a factor of 1.001 fails") {
  const GradcheckReport report = gradcheck(with(cube, Bug::factor), {normal({3, 5})});
  CHECK(report.fault == GradcheckFault::wrong_gradient);
  CHECK(report.wrong == 15);
  CHECK(report.worst.error() == doctest::Approx(0.001).epsilon(0.01));
}

TEST_CASE("G14 float32 inputs are refused unless forced") {
  const Tensor x = normal({4}).to(DType::f32);
  auto same = [](const Var& v) {
    return record(
        "same", v.value().clone(), [](const Tensor& dy, Grad dx) { dx.pass(dy); }, v);
  };
  CHECK_THROWS_WITH_AS(gradcheck(same, {x}), doctest::Contains("is f32"), Error);
  CHECK_THROWS_WITH_AS(gradcheck(same, {tensor({1}).to(DType::i32)}), doctest::Contains("i32"), Error);
  const GradcheckReport forced = gradcheck(same, {x}, {.allow_f32 = true});
  CHECK_MESSAGE(forced.passed(), forced.text());
}

TEST_CASE("G14 NaN on either side fails") {
  CHECK(gradcheck(with(cube, Bug::nan), {normal({4})}).fault == GradcheckFault::not_finite);
  // A value that is NaN just beside the point: the numeric side.
  auto edge = [](const Var& x) {
    return record(
        "edge", map(x.value(), [](double v) { return v < 0 ? std::nan("") : v; }),
        [](const Tensor& dy, Grad dx) { dx.pass(dy); }, x);
  };
  CHECK(gradcheck(edge, {zeros({2}, DType::f64)}).fault == GradcheckFault::not_finite);
  CHECK(gradcheck(edge, {full({2}, -1, DType::f64)}).fault == GradcheckFault::not_finite);
}

TEST_CASE("G14 dropout with a fresh key is reported as not deterministic") {
  const Tensor x = normal({64});
  const GradcheckReport fresh = gradcheck([](const Var& v) { return drop(v, next_random_key()); }, {x});
  CHECK(fresh.fault == GradcheckFault::not_deterministic);
  const GradcheckReport fixed = gradcheck([key = next_random_key()](const Var& v) { return drop(v, key); }, {x});
  CHECK_MESSAGE(fixed.passed(), fixed.text());
  CHECK(gradcheck(with(cube, Bug::noise), {x}).fault == GradcheckFault::not_deterministic);
}

TEST_CASE("Planted faults are found, and the same ops without them pass") {
  struct Planted {
    const char* what;
    GradcheckFunction right, wrong;
    std::vector<Tensor> inputs;
    GradcheckFault fault;
    const char* input;  // that the report must name
  };
  auto plant = [](const char* what, auto op, Bug bug, std::vector<Tensor> inputs, GradcheckFault fault,
                  const char* input) {
    return Planted{
        what, gradcheck_function(with(op, Bug::none)), gradcheck_function(with(op, bug)), std::move(inputs), fault,
        input};
  };
  constexpr GradcheckFault kGradient = GradcheckFault::wrong_gradient, kWrite = GradcheckFault::wrong_write;
  const Tensor x = normal({3, 4}), row = normal({4}, 1), square = normal({4, 4}, 2), other = normal({3, 4}, 3);
  const Planted all[] = {
      plant("sign", cube, Bug::sign, {x}, kGradient, "input 0"),
      plant("factor", cube, Bug::factor, {x}, kGradient, "input 0"),
      plant("one entry off by 0.1 %", cube, Bug::one_entry, {x}, kGradient, "input 0[1, 0]"),
      plant("missing term", softmax, Bug::missing_term, {x}, kGradient, "input 0"),
      plant("missing 1/n", mean_of_rows, Bug::missing_mean, {x}, kGradient, "input 0"),
      plant("wrong axis", mean_of_rows, Bug::wrong_axis, {x}, kGradient, "input 0"),
      plant("unreduced broadcast", scale_columns, Bug::unreduced, {x, row}, kGradient, "input 1"),
      plant("transposed", product, Bug::transposed, {x, square}, kGradient, "input 0"),
      plant("gradient of the wrong input", square_times, Bug::swapped, {x, other}, kGradient, "input"),
      plant("value overwritten after it was kept", twice_exp, Bug::stale, {x}, kGradient, "input 0"),
      plant("value overwritten after save()", twice_exp, Bug::stale_saved, {x}, GradcheckFault::error, "changed"),
      plant("first write adds", cube, Bug::always_adds, {x}, kWrite, "input 0"),
      plant("second write assigns", cube, Bug::always_assigns, {x}, kWrite, "input 0"),
      plant("gradient not claimed", scale_columns, Bug::forgets_claim, {x, row}, GradcheckFault::error, "input 1"),
  };
  for (const Planted& p : all) {
    CAPTURE(p.what);
    const GradcheckReport right = gradcheck(p.right, p.inputs);
    CHECK_MESSAGE(right.passed(), right.text());
    const GradcheckReport wrong = gradcheck(p.wrong, p.inputs);
    CHECK_MESSAGE(wrong.fault == p.fault, wrong.text());
    CHECK_MESSAGE(wrong.text().find(p.input) != std::string::npos, wrong.text());
    // Also where only random directions are compared, except for the one entry that these may miss.
    const GradcheckOptions sampled{.full_jacobian_limit = 1};
    CHECK_MESSAGE(gradcheck(p.right, p.inputs, sampled).passed(), gradcheck(p.right, p.inputs, sampled).text());
    CHECK(gradcheck(p.wrong, p.inputs, sampled).fault == p.fault);
  }
}

TEST_CASE("A report names the worst entry with both values") {
  const GradcheckReport report = gradcheck(with(cube, Bug::one_entry), {normal({3, 4})}, {.names = {"x"}});
  CHECK(report.worst.input_index == 4);
  CHECK(report.worst.output_index == 4);
  CHECK(report.worst.analytic == doctest::Approx(1.001 * report.worst.numeric).epsilon(1e-6));
  CHECK(report.worst.error_bar < 1e-6 * report.worst.scale);
  CHECK(report.wrong == 1);
  CHECK_MESSAGE(report.text().find("d output 0[1, 0] / d x[1, 0]") != std::string::npos, report.text());
}

TEST_CASE("0.1 % in one entry is found wherever it lies, up to the size limit") {
  const Tensor x = normal({3, 47}, 5);  // 141 * 141 entries, just below the limit
  for (std::int64_t at = 0; at < x.numel(); at += 20) {
    auto op = [at](const Var& v) {
      return record(
          "cube", map(v.value(), [](double u) { return u * u * u + u; }),
          [x = save(v), at](const Tensor& dy, Grad dx) {
            write(dx,
                  [&](std::int64_t i) { return (i == at ? 1.001 : 1) * (3 * x().at(i) * x().at(i) + 1) * dy.at(i); });
          },
          v);
    };
    const GradcheckReport report = gradcheck(op, {x});
    CHECK(report.full_jacobian);
    CHECK(report.fault == GradcheckFault::wrong_gradient);
    CHECK(report.wrong == 1);
    CHECK(report.worst.input_index == at);
  }
}

TEST_CASE("Kinks are skipped and counted") {
  Tensor x = normal({20});
  x.mutable_data<double>()[3] = 0;
  x.mutable_data<double>()[7] = 1e-7;  // closer than the step
  const GradcheckReport report = gradcheck(relu, {x}, {.max_kink_share = 0.2});
  CHECK_MESSAGE(report.passed(), report.text());
  CHECK(report.kinks == 2);
  CHECK(report.compared == 398);
  CHECK(gradcheck(relu, {x}, {.max_kink_share = 0}).fault == GradcheckFault::too_many_kinks);
  CHECK(gradcheck(relu, {zeros({1}, DType::f64)}, {.max_kink_share = 1}).fault == GradcheckFault::too_many_kinks);
}

TEST_CASE("Above the size limit random directions are compared") {
  const std::vector<Tensor> inputs{normal({150, 7}), normal({7}, 1)};
  const GradcheckReport right = gradcheck(with(scale_columns, Bug::none), inputs);
  CHECK_MESSAGE(right.passed(), right.text());
  CHECK(!right.full_jacobian);
  CHECK(right.compared == 8 * 2 * 5);
  const GradcheckReport wrong = gradcheck(with(scale_columns, Bug::unreduced), inputs);
  CHECK(wrong.fault == GradcheckFault::wrong_gradient);
  CHECK(wrong.worst.input == "input 1");
}

TEST_CASE("Functions of any arity, of a span, and with several outputs") {
  const Tensor a = normal({2, 3}), b = normal({2, 3}, 1);
  auto pair = [](const Var& x, const Var& y) { return std::array{cube(x, Bug::none), square_times(x, y, Bug::none)}; };
  const GradcheckReport two = gradcheck(pair, {a, b});
  CHECK_MESSAGE(two.passed(), two.text());
  CHECK(two.compared == 12 * 12);
  auto span = [](std::span<const Var> x) { return std::vector<Var>{cube(x[0], Bug::none), cube(x[1], Bug::factor)}; };
  const GradcheckReport second = gradcheck(span, {a, b});
  CHECK(second.worst.input == "input 1");
  CHECK(second.worst.output == 1);
  CHECK(gradcheck(with(cube, Bug::none), {a, b}).message.find("does not take 2 Vars") != std::string::npos);
  // An input that the output does not depend on, and an empty one.
  CHECK(gradcheck([](const Var& x, const Var&) { return cube(x, Bug::none); }, {a, b}).passed());
  CHECK(gradcheck(with(cube, Bug::none), {zeros({0, 3}, DType::f64)}).passed());
  // A detached input gets no gradient although the value depends on it.
  const GradcheckReport cut = gradcheck([](const Var& x) { return cube(x.detach(), Bug::none); }, {a});
  CHECK(cut.fault == GradcheckFault::wrong_gradient);
  CHECK(cut.worst.analytic == 0);
}

TEST_CASE("Numeric evaluation runs without a tape, also inside one") {
  int with_tape = 0, without_tape = 0;
  auto f = [&](const Var& x) {
    ++(Tape::current() ? with_tape : without_tape);
    return cube(x, Bug::none);
  };
  Tape outer;
  CHECK(gradcheck(f, {normal({3})}).passed());
  CHECK(without_tape == 2 + 4 * 3);
  CHECK(with_tape == 1 + 4 + 3);
  CHECK(outer.size() == 0);
  CHECK(Tape::current() == &outer);
}

TEST_CASE("A module is checked with its parameters and gets its values back") {
  Scaled module;
  const Tensor weight = module.weight.value().clone();
  const GradcheckReport report = gradcheck(module, {normal({3})});
  CHECK_MESSAGE(report.passed(), report.text());
  CHECK(report.parameters == 2);
  CHECK(report.inputs == 1);
  CHECK(same_bits(module.weight.value(), weight));
  CHECK(!module.weight.has_grad());
  // It trains on as before.
  {
    Tape tape;
    const Var w(module.weight);
    tape.backward(inner_product(std::span(&w, 1), full({3}, 2, DType::f64)));
  }
  CHECK(module.weight.grad().dtype() == DType::f32);
  CHECK(module.weight.grad().at(2) == 2);
  CHECK(gradcheck(module, [&](const Var& x) { return module(x); }, {normal({3})}).parameters == 2);
}

TEST_CASE("A frozen parameter is skipped and named") {
  Scaled module;
  module.weight.set_trainable(false);
  const GradcheckReport report = gradcheck(module, {normal({3})});
  CHECK_MESSAGE(report.passed(), report.text());
  CHECK(report.parameters == 1);
  CHECK(report.frozen == std::vector<std::string>{"weight"});
  CHECK_MESSAGE(report.text().find("1 frozen parameter not checked (weight)") != std::string::npos, report.text());
  CHECK(!module.weight.trainable());
  // With nothing left to check there is no success either.
  freeze(module);
  const GradcheckReport none = gradcheck(module, [&] { return module(Var(normal({3}))); }, {});
  CHECK(none.fault == GradcheckFault::error);
  CHECK_MESSAGE(none.message.find("2 parameters that are all frozen") != std::string::npos, none.message);
}

TEST_CASE("Exceptions of any kind are in the report") {
  auto f = [](const Var& x) -> Var {
    if (x) throw std::out_of_range("no such row");
    return x;
  };
  const GradcheckReport report = gradcheck(f, {normal({3})});
  CHECK(report.fault == GradcheckFault::error);
  CHECK(report.message.find("no such row") != std::string::npos);
}

TEST_CASE("A parameter that visit() forgets is reported") {
  Scaled module(true);
  // As it comes, in f32: the module was converted to f64 and the forgotten Parameter was not.
  const GradcheckReport mixed = gradcheck(module, {normal({3})});
  CHECK(mixed.fault == GradcheckFault::not_visited);
  CHECK(mixed.message.find("missing: [3]; add v(") != std::string::npos);
  CHECK(gradcheck([&](const Var& x) { return module(x); }, {normal({3})}).fault == GradcheckFault::not_visited);
  convert(module, DType::f64);
  module.shift.to(DType::f64);
  const GradcheckReport report = gradcheck(module, {normal({3})});
  CHECK(report.fault == GradcheckFault::not_visited);
  CHECK(report.message.find("visit()") != std::string::npos);
  // Without the module nobody would check its parameters.
  const GradcheckReport loose = gradcheck([&](const Var& x) { return module(x); }, {normal({3})});
  CHECK(loose.fault == GradcheckFault::not_visited);
}

TEST_CASE("A module is restored when its function throws") {
  Scaled module;
  const Tensor weight = module.weight.value().clone();
  int calls = 0;
  auto f = [&](const Var& x) {
    if (++calls == 12) fail("thrown on purpose");
    return module(x);
  };
  const GradcheckReport report = gradcheck(module, f, {normal({3})});
  CHECK(report.fault == GradcheckFault::error);
  CHECK(report.message.find("thrown on purpose") != std::string::npos);
  CHECK(same_bits(module.weight.value(), weight));
}
