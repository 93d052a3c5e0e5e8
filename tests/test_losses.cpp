// The losses: values worked out by hand, reductions, extreme and special inputs, refused shapes, determinism.
#include <array>
#include <string>

#include "autograd/ops.h"
#include "error_message.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

constexpr LossReduction kNone = LossReduction::none, kSum = LossReduction::sum;

using Loss = Var (*)(const Var&, const Var&, LossReduction);
struct Named {
  const char* name;
  Loss loss;
};
const Named kLosses[] = {
    {"mse", [](const Var& x, const Var& t, LossReduction r) { return mse(x, t, r); }},
    {"l1", [](const Var& x, const Var& t, LossReduction r) { return l1(x, t, r); }},
    {"huber", [](const Var& x, const Var& t, LossReduction r) { return huber(x, t, 1, r); }},
    {"bce_with_logits", [](const Var& x, const Var& t, LossReduction r) { return bce_with_logits(x, t, {}, r); }},
    {"kl_div", [](const Var& x, const Var& t, LossReduction r) { return kl_div(x, t, r); }},
};

struct Result {
  Tensor value, dx, dtarget;
};
// f(x, target) and the gradients of the sum of its elements.
template <class F>
Result run(const Tensor& x, const Tensor& target, F f) {
  Tape tape;
  const Var vx = tape.watch(x), vt = tape.watch(target), y = f(vx, vt);
  tape.backward(sum(y));
  return {y.value(), tape.grad(vx), tape.grad(vt)};
}

}  // namespace

TEST_CASE_TEMPLATE("values and gradients worked out by hand", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  const double tolerance = kTolerance<T>;
  const Tensor x = tensor({0.5, -1, 2, 3}, {4}, dtype), t = tensor({0, 1, 2, -1}, {4}, dtype);

  Result r = run(x, t, [](const Var& a, const Var& b) { return mse(a, b, kNone); });
  check_close(r.value, {0.25, 4, 0, 16}, 0);
  check_close(r.dx, {1, -4, 0, 8}, 0);
  check_close(r.dtarget, {-1, 4, 0, -8}, 0);
  CHECK(mse(x, t).item() == 20.25 / 4);
  CHECK(mse(x, t, kSum).item() == 20.25);

  r = run(x, t, [](const Var& a, const Var& b) { return l1(a, b, kNone); });
  check_close(r.value, {0.5, 2, 0, 4}, 0);
  check_close(r.dx, {1, -1, 0, 1}, 0);
  check_close(r.dtarget, {-1, 1, 0, -1}, 0);

  r = run(x, t, [](const Var& a, const Var& b) { return huber(a, b, 2, kNone); });
  check_close(r.value, {0.125, 2, 0, 6}, 0);
  check_close(r.dx, {0.5, -2, 0, 2}, 0);
  check_close(r.dtarget, {-0.5, 2, 0, -2}, 0);

  // The mean divides gradients as well.
  r = run(x, t, [](const Var& a, const Var& b) { return huber(a, b, 2); });
  CHECK(r.value.item() == 8.125 / 4);
  check_close(r.dx, {0.125, -0.5, 0, 0.5}, 0);

  const Tensor p = tensor({0, 1, 0.25, 1}, {4}, dtype);
  r = run(x, p, [](const Var& a, const Var& b) { return bce_with_logits(a, b, {}, kNone); });
  check_close(r.value, {0.9740769841801067, 1.3132616875182228, 1.6269280110429727, 0.04858735157374196}, tolerance);
  check_close(r.dx, {0.6224593312018546, -0.7310585786300049, 0.6307970779778824, -0.04742587317756678}, tolerance);
  check_close(r.dtarget, {-0.5, 1, -2, -3}, tolerance);
  const Tensor weight = tensor({3}, {1}, dtype);
  r = run(x, p, [&](const Var& a, const Var& b) { return bce_with_logits(a, b, weight, kNone); });
  check_close(r.value, {0.9740769841801067, 3.9397850625546684, 1.6903920165, 0.14576205472122588}, 2e-6);

  r = run(tensor({-1, -2, -0.5, -3}, {4}, dtype), p, [](const Var& a, const Var& b) { return kl_div(a, b, kNone); });
  check_close(r.value, {0, 2, 0.25 * (std::log(0.25) + 0.5), 3}, tolerance);
  check_close(r.dx, {0, -1, -0.25, -1}, 0);
  check_close(r.dtarget, {-kInf, 3, std::log(0.25) + 1.5, 4}, tolerance);
}

TEST_CASE("the sum and the mean agree with the elements at every size") {
  for (const Named& named : kLosses)
    for (std::int64_t n : {1, 31, 33, 5001}) {
      CAPTURE(named.name);
      const Tensor x = random_normal({n}, DType::f64, 1);
      Tensor t = empty_like(x);
      fill_uniform(t, 0.1, 0.9, RandomKey{1, 2});
      const Result none = run(x, t, [&](const Var& a, const Var& b) { return named.loss(a, b, kNone); });
      double total = 0;
      for (std::int64_t i = 0; i < n; ++i) total += none.value.at(i);
      CHECK(named.loss(x, t, kSum).item() == doctest::Approx(total).epsilon(1e-12));
      const Result mean = run(x, t, [&](const Var& a, const Var& b) { return named.loss(a, b, LossReduction::mean); });
      CHECK(mean.value.item() == doctest::Approx(total / static_cast<double>(n)).epsilon(1e-12));
      for (std::int64_t i = 0; i < n; ++i) {
        CHECK(close(mean.dx.at(i), none.dx.at(i) / static_cast<double>(n), 1e-14));
        CHECK(close(mean.dtarget.at(i), none.dtarget.at(i) / static_cast<double>(n), 1e-14));
      }
    }
}

TEST_CASE_TEMPLATE("N06 bce_with_logits at extreme logits", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  auto bce = [](const Var& a, const Var& b) { return bce_with_logits(a, b, {}, kNone); };
  const Tensor x = tensor({1e8, 1e8, -1e8, -1e8, 1000, -1000, 30, -30}, {8}, dtype);
  const Result r = run(x, tensor({0, 1, 0, 1, 1, 1, 0, 1}, {8}, dtype), bce);
  check_close(r.value, {1e8, 0, 0, 1e8, 0, 1000, 30, 30}, 1e-12);
  check_close(r.dx, {1, 0, 0, -1, 0, -1, 1, -1}, 1e-12);
  // What 1 + exp(-20) rounds away in f32 is kept.
  CHECK(bce_with_logits(tensor({20}, {1}, dtype), tensor({1}, {1}, dtype)).item() ==
        doctest::Approx(2.0611536181902037e-9).epsilon(1e-6));
}

TEST_CASE_TEMPLATE("N07 losses at infinities", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  auto bce = [](const Var& a, const Var& b) { return bce_with_logits(a, b, {}, kNone); };
  Result r = run(tensor({kInf, kInf, -kInf, -kInf}, {4}, dtype), tensor({0, 1, 0, 1}, {4}, dtype), bce);
  check_close(r.value, {kInf, 0, 0, kInf}, 0);
  check_close(r.dx, {1, 0, 0, -1}, 0);

  r = run(tensor({-kInf, -kInf}, {2}, dtype), tensor({0, 0.5}, {2}, dtype),
          [](const Var& a, const Var& b) { return kl_div(a, b, kNone); });
  check_close(r.value, {0, kInf}, 0);
  check_close(r.dx, {0, -0.5}, 0);

  r = run(tensor({kInf, -kInf}, {2}, dtype), tensor({0, 0}, {2}, dtype),
          [](const Var& a, const Var& b) { return huber(a, b, 2, kNone); });
  check_close(r.value, {kInf, kInf}, 0);
  check_close(r.dx, {2, -2}, 0);
  check_close(r.dtarget, {-2, 2}, 0);

  r = run(tensor({kInf, -kInf}, {2}, dtype), tensor({0, 0}, {2}, dtype),
          [](const Var& a, const Var& b) { return l1(a, b, kNone); });
  check_close(r.value, {kInf, kInf}, 0);
  check_close(r.dx, {1, -1}, 0);
}

TEST_CASE_TEMPLATE("NaN in input or target makes the loss NaN", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  for (const Named& named : kLosses)
    for (std::int64_t n : {1, 17}) {
      CAPTURE(named.name);
      const Tensor fine = full({n}, 0.5, dtype);
      for (double value : {0.0, 1.0, 0.5}) {
        Tensor bad = full({n}, value, dtype);
        bad.mutable_data<T>()[n - 1] = static_cast<T>(kNaN);
        CHECK(std::isnan(named.loss(bad, full({n}, value, dtype), kNone).value().at(n - 1)));
        CHECK(std::isnan(named.loss(fine, bad, kNone).value().at(n - 1)));
        CHECK(std::isnan(named.loss(bad, fine, LossReduction::mean).item()));
        if (std::string(named.name) != "kl_div") {
          const Result r = run(bad, fine, [&](const Var& a, const Var& b) { return named.loss(a, b, kNone); });
          CHECK(std::isnan(r.dx.at(n - 1)));
        }
      }
    }
}

TEST_CASE("N08 the sum over nothing is 0, its mean throws") {
  const Tensor nothing = zeros({0, 3});
  for (const Named& named : kLosses) {
    CHECK(named.loss(nothing, nothing, kSum).item() == 0);
    CHECK(named.loss(nothing, nothing, kNone).shape() == Shape{0, 3});
    check_error([&] { named.loss(nothing, nothing, LossReduction::mean); },
                {std::string(named.name) + ": needs at least one element"});
  }
}

TEST_CASE("N10 Loss broadcasts silently") {
  const Tensor x = tensor({1, 2, 3}), column = tensor({1, 2, 3}, {3, 1});
  for (const Named& named : kLosses) {
    for (const auto& [a, b] : {std::array{x, column}, std::array{column, x}, std::array{x, zeros({})}})
      check_error(
          [&, u = a, v = b] { named.loss(u, v, LossReduction::mean); },
          {std::string(named.name) + ": ", to_text(a.shape()), to_text(b.shape()), "do not broadcast; reshape"});
    CHECK_THROWS_AS(named.loss(x, x.to(DType::f64), LossReduction::mean), Error);
  }
  CHECK(mse(x, x).item() == 0);
}

TEST_CASE("options out of range are refused") {
  const Tensor x = tensor({1, 2, 3});
  CHECK_THROWS_AS(huber(x, x, 0), Error);
  CHECK_THROWS_AS(huber(x, x, -1), Error);
  CHECK_THROWS_AS(huber(x, x, kNaN), Error);
  CHECK_THROWS_AS(bce_with_logits(x, x, zeros({2})), Error);
  CHECK_THROWS_AS(bce_with_logits(x, x, zeros({2, 3})), Error);
  CHECK_THROWS_AS(bce_with_logits(x, x, zeros({3}, DType::f64)), Error);
}

TEST_CASE("R03 same bits for any number of threads") {
  const Tensor x = random_normal({301, 517}, DType::f32, 1);
  Tensor t = empty_like(x);
  fill_uniform(t, 0.1, 0.9, RandomKey{1, 2});
  for (const Named& named : kLosses)
    check_same_bits_for_any_threads([&] {
      const Result r = run(x, t, [&](const Var& a, const Var& b) { return named.loss(a, b, LossReduction::mean); });
      return std::vector{r.value, r.dx, r.dtarget};
    });
}
