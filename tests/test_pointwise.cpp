// Pointwise ops at their singular points: zeros, ties, bounds, infinities, NaN; operators, masks and comparisons.
#include "autograd/ops.h"
#include "core/kernels/compare.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

using Values = std::initializer_list<double>;
using Unary = std::function<Var(const Var&)>;
using Binary = std::function<Var(const Var&, const Var&)>;

constexpr double kTight = 2e-7;

Tensor values_of(Values values, DType dtype) {
  return tensor(values, {static_cast<std::int64_t>(values.size())}, dtype);
}

// f(x) and the gradient of its sum, in f32 and f64.
void check(const Unary& f, Values x, const std::vector<double>& y, const std::vector<double>& gradient) {
  for (DType dtype : {DType::f32, DType::f64}) {
    Tape tape;
    const Var in = tape.watch(values_of(x, dtype)), out = f(in);
    check_close(out.value(), y, kTight);
    tape.backward(sum(out));
    check_close(tape.grad(in), gradient, kTight);
  }
}
void check(const Binary& f, Values a, Values b, const std::vector<double>& y, const std::vector<double>& da,
           const std::vector<double>& db) {
  for (DType dtype : {DType::f32, DType::f64}) {
    Tape tape;
    const Var u = tape.watch(values_of(a, dtype)), v = tape.watch(values_of(b, dtype)), out = f(u, v);
    check_close(out.value(), y, kTight);
    tape.backward(sum(out));
    check_close(tape.grad(u), da, kTight);
    check_close(tape.grad(v), db, kTight);
  }
}

Tensor mask_of(Values values) { return values_of(values, DType::u8); }

}  // namespace

TEST_CASE("G11 where: the operand that is not selected has no effect, forward and backward") {
  const Tensor mask = mask_of({1, 0});
  for (double poison : {kNaN, kInf, -kInf}) {
    check([&](const Var& a, const Var& b) { return where(mask, a, b); }, {1, 2}, {poison, 5}, {1, 5}, {1, 0}, {0, 1});
    check([&](const Var& a, const Var& b) { return where(mask, a, b); }, {1, poison}, {7, 5}, {1, 5}, {1, 0}, {0, 1});
    check([&](const Var& x) { return masked_fill(x, mask, -2); }, {poison, 3}, {-2, 3}, {0, 1});
  }
}

TEST_CASE("G11 where: an infinite or NaN gradient stays out of the operand that is not selected") {
  Tape tape;
  const Var a = tape.watch(tensor({1, 2})), b = tape.watch(tensor({3, 4}));
  tape.backward(sum(where(mask_of({1, 0}), a, b) * Var(tensor({kInf, kNaN}))));
  check_close(tape.grad(a), {kInf, 0}, 0);
  check_close(tape.grad(b), {0, kNaN}, 0);
}

TEST_CASE("G11 where over a root: NaN as composed, right with a safe argument") {
  const auto composed = [](const Var& x) { return where(gt(x, 0), sqrt(x), x); };
  check(composed, {-1, 4}, {-1, 2}, {kNaN, 0.25});
  const auto safe = [](const Var& x) {
    const Tensor mask = gt(x, 0);
    return where(mask, sqrt(where(mask, x, Var(full({}, 1, x.dtype())))), x);
  };
  check(safe, {-1, 4}, {-1, 2}, {1, 0.25});
}

TEST_CASE("G11 powers at zero and of negative numbers, with a fixed exponent") {
  const auto power = [](double exponent) { return [exponent](const Var& x) { return pow(x, exponent); }; };
  check(power(0), {0, -0.0, 2, -2, kInf, kNaN}, {1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0});
  check(power(1), {0, -3, kInf}, {0, -3, kInf}, {1, 1, 1});
  check(power(2), {0, -3, kInf, kNaN}, {0, 9, kInf, kNaN}, {0, -6, kInf, kNaN});
  check(power(3), {0, -2}, {0, -8}, {0, 12});
  check(power(5), {-2, 0}, {-32, 0}, {80, 0});
  check(power(0.5), {0, 4, -1}, {0, 2, kNaN}, {kInf, 0.25, kNaN});
  check(power(-1), {0, -2, kInf}, {kInf, -0.5, 0}, {-kInf, -0.25, 0});
}

TEST_CASE("G11 powers at zero and of negative numbers, with both operands as inputs") {
  const double log2 = std::log(2.0);
  check([](const Var& a, const Var& b) { return pow(a, b); },  //
        {0, 0, 0, 0, 2, 2, -2, kInf, kNaN}, {0, 1, 2, 0.5, 0, 3, 3, -1, 1}, {1, 0, 0, 0, 1, 8, -8, 0, kNaN},
        {0, 1, 0, kInf, 0, 12, 12, 0, 1}, {0, 0, 0, 0, log2, 8 * log2, kNaN, 0, kNaN});
}

TEST_CASE("G11 minimum and maximum: a tie gives half to each, NaN on either side gives NaN") {
  check(minimum, {1, 2, 3, kNaN, 1, -kInf, kInf}, {2, 2, 1, 1, kNaN, -kInf, 0}, {1, 2, 1, kNaN, kNaN, -kInf, 0},
        {1, 0.5, 0, kNaN, kNaN, 0.5, 0}, {0, 0.5, 1, kNaN, kNaN, 0.5, 1});
  check(maximum, {1, 2, 3, kNaN, 1, kInf, -kInf}, {2, 2, 1, 1, kNaN, kInf, 0}, {2, 2, 3, kNaN, kNaN, kInf, 0},
        {0, 0.5, 1, kNaN, kNaN, 0.5, 0}, {1, 0.5, 0, kNaN, kNaN, 0.5, 1});
}

TEST_CASE("G11 clamp: gradient 1 inside and at the bounds, 0 outside, NaN at NaN") {
  check([](const Var& x) { return clamp(x, -1, 2); }, {-2, -1, 0, 2, 3, kInf, -kInf, kNaN},
        {-1, -1, 0, 2, 2, 2, -1, kNaN}, {0, 1, 1, 1, 0, 0, 0, kNaN});
  check([](const Var& x) { return clamp(x, 0, kInf); }, {-2, 5, kInf}, {0, 5, kInf}, {0, 1, 1});
  CHECK_THROWS_WITH_AS(clamp(Var(zeros({1})), 2, 1), doctest::Contains("clamp: low"), Error);
  CHECK_THROWS_AS(clamp(Var(zeros({1})), kNaN, 1), Error);
}

TEST_CASE("G11 functions of one input at the ends of their domains") {
  check(tapestry::abs, {0, -0.0, -2, 3, -kInf, kNaN}, {0, 0, 2, 3, kInf, kNaN}, {0, 0, -1, 1, -1, kNaN});
  check(tapestry::sign, {0, -2, 3, -kInf, kNaN}, {0, -1, 1, -1, kNaN}, {0, 0, 0, 0, 0});
  check(tapestry::log, {0, -1, kInf, kNaN}, {-kInf, kNaN, kInf, kNaN}, {kInf, -1, 0, kNaN});
  check(tapestry::log1p, {-1, 0, 1e-10, kInf, kNaN}, {-kInf, 0, 1e-10, kInf, kNaN}, {kInf, 1, 1, 0, kNaN});
  check(tapestry::expm1, {0, 1e-10, -kInf, kInf, kNaN}, {0, 1e-10, -1, kInf, kNaN}, {1, 1, 0, kInf, kNaN});
  check(tapestry::sqrt, {0, -1, kInf}, {0, kNaN, kInf}, {kInf, kNaN, 0});
  check(tapestry::rsqrt, {0, 4, -1, kInf, kNaN}, {kInf, 0.5, kNaN, 0, kNaN}, {-kInf, -0.0625, kNaN, 0, kNaN});
  check([](const Var& x) { return reciprocal(x); }, {0, 4, kInf, kNaN}, {kInf, 0.25, 0, kNaN},
        {-kInf, -0.0625, 0, kNaN});
  check(tapestry::erf, {0, kInf, -kInf, kNaN}, {0, 1, -1, kNaN}, {1.1283791670955126, 0, 0, kNaN});
  check(tapestry::sin, {0, kInf, kNaN}, {0, kNaN, kNaN}, {1, kNaN, kNaN});
  check(tapestry::cos, {0, kInf, kNaN}, {1, kNaN, kNaN}, {0, kNaN, kNaN});
}

TEST_CASE("G11 leaky_relu, elu and softplus at 0, far out and at NaN") {
  check([](const Var& x) { return leaky_relu(x, 0.25); }, {0, -4, 3, kInf, -kInf, kNaN}, {0, -1, 3, kInf, -kInf, kNaN},
        {0.25, 0.25, 1, 1, 0.25, kNaN});
  check([](const Var& x) { return elu(x, 2); }, {0, -1000, 3, kInf, -kInf, kNaN}, {0, -2, 3, kInf, -2, kNaN},
        {2, 0, 1, 1, 0, kNaN});
  check([](const Var& x) { return softplus(x); }, {0, -1000, 1000, kInf, -kInf, kNaN},
        {std::log(2.0), 0, 1000, kInf, 0, kNaN}, {0.5, 0, 1, 1, 0, kNaN});
  check([](const Var& x) { return softplus(x, 2); }, {0}, {std::log(2.0) / 2}, {0.5});
  CHECK_THROWS_AS(softplus(Var(zeros({1})), 0), Error);
}

TEST_CASE("operators with a number on either side") {
  check([](const Var& x) { return 2 + x; }, {3, -1}, {5, 1}, {1, 1});
  check([](const Var& x) { return 2 - x; }, {3, -1}, {-1, 3}, {-1, -1});
  check([](const Var& x) { return 6 / x; }, {3, -1}, {2, -6}, {-6.0 / 9, -6});
  check([](const Var& x) { return x / 4; }, {3, -1}, {0.75, -0.25}, {0.25, 0.25});
}

TEST_CASE("G02 new operations with both operands broadcast at once") {
  const Tensor column = tensor({1, 2}, {2, 1}), line = tensor({10, 1, 2}, {1, 3}), mask = gt(column, 1.5);
  const auto gradients = [&](const Binary& f, const std::vector<double>& da, const std::vector<double>& db) {
    Tape tape;
    const Var a = tape.watch(column), b = tape.watch(line);
    tape.backward(sum(f(a, b)));
    CHECK(tape.grad(a).shape() == Shape{2, 1});
    CHECK(tape.grad(b).shape() == Shape{1, 3});
    check_close(tape.grad(a), da, kTight);
    check_close(tape.grad(b), db, kTight);
  };
  gradients(minimum, {2.5, 1.5}, {0, 1.5, 0.5});
  gradients(maximum, {0.5, 1.5}, {2, 0.5, 1.5});
  gradients([&](const Var& a, const Var& b) { return where(mask, a, b); }, {0, 3}, {1, 1, 1});
  const double log2 = std::log(2.0);
  gradients([](const Var& a, const Var& b) { return pow(a, b); }, {13, 5120 + 1 + 4},
            {1024 * log2, 2 * log2, 4 * log2});
}

TEST_CASE("comparisons: every kind, NaN, broadcasting, integers, Vars and numbers") {
  const Tensor a = tensor({1, 2, 3, kNaN}), b = tensor({2, 2, 2, 2});
  check_close(eq(a, b), {0, 1, 0, 0}, 0);
  check_close(ne(a, b), {1, 0, 1, 1}, 0);
  check_close(lt(a, b), {1, 0, 0, 0}, 0);
  check_close(le(a, b), {1, 1, 0, 0}, 0);
  check_close(gt(a, b), {0, 0, 1, 0}, 0);
  check_close(ge(a, b), {0, 1, 1, 0}, 0);
  CHECK(eq(a, b).dtype() == DType::u8);
  check_close(gt(Var(a), 1.5), {0, 1, 1, 0}, 0);
  check_close(ge(Var(a), b), {0, 1, 1, 0}, 0);
  check_close(lt(tensor({1, 2}, {2, 1}), tensor({1, 2, 3}, {1, 3})), {0, 1, 1, 0, 0, 1}, 0);
  check_close(lt(tensor({1, 2, 3}, {1, 3}), tensor({1, 2}, {2, 1})), {0, 0, 0, 1, 0, 0}, 0);
  for (DType dtype : {DType::i32, DType::i64, DType::u8}) check_close(le(tensor({1, 2, 3}).to(dtype), 2), {1, 1, 0}, 0);
  CHECK(eq(zeros({0, 3}), 1).numel() == 0);
  CHECK_THROWS_AS(eq(a.to(DType::i32), 0.5), Error);
  CHECK_THROWS_AS(eq(a, b.to(DType::f64)), Error);
  CHECK_THROWS_AS(eq(a, zeros({3})), Error);
}

TEST_CASE("comparisons of long rows have the same result for any number of threads") {
  const Tensor a = random_normal({7, 20011}, DType::f32, 1), b = random_normal({20011}, DType::f32, 2);
  const Tensor y = lt(a, b);
  bool right = true;
  for (std::int64_t i = 0; i < a.numel(); ++i) right &= (y.at(i) == 1) == (a.at(i) < b.at(i % 20011));
  CHECK(right);
  check_same_bits_for_any_threads([&] { return std::vector<Tensor>{lt(a, b), ge(b, a), ne(a, 0)}; });
}

TEST_CASE("where throws for a mask that is not u8, operands of two dtypes and shapes that do not fit") {
  const Var x(zeros({2})), y(zeros({2}, DType::f64));
  CHECK_THROWS_WITH_AS(where(zeros({2}), x, x), doctest::Contains("where: mask must be u8"), Error);
  CHECK_THROWS_AS(where(mask_of({1, 0}), x, y), Error);
  CHECK_THROWS_AS(where(mask_of({1, 0, 1}), x, x), Error);
}
