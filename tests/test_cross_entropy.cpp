// Cross-entropy kernels against naive double references, numeric differentiation, extreme logits and bad targets.
#include "core/kernels/cross_entropy.h"

#include <algorithm>
#include <string>

#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

constexpr std::int64_t kIgnore = -100;

struct Output {
  Tensor loss, row_stats;
  std::int64_t valid = -1;
};
Output run(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = kIgnore) {
  Output out{full({}, kNaN, logits.dtype()), full({logits.shape().rows(), 2}, kNaN, logits.dtype())};
  cpu::cross_entropy_forward(logits, targets, ignore_index, out.loss, out.row_stats, out.valid);
  return out;
}

void backward(const Tensor& logits, const Tensor& targets, double dloss, Grad dlogits) {
  const Output out = run(logits, targets);
  cpu::cross_entropy_backward(full({}, dloss, logits.dtype()), logits, targets, kIgnore, out.row_stats, out.valid,
                              dlogits);
}
Tensor gradient(const Tensor& logits, const Tensor& targets, double dloss = 1) {
  Target dlogits(logits.shape(), logits.dtype(), false);
  backward(logits, targets, dloss, dlogits.grad());
  return dlogits.tensor();
}

Tensor targets_of(const std::vector<std::int64_t>& targets, DType dtype = DType::i64) {
  return from_values(targets, {static_cast<std::int64_t>(targets.size())}).to(dtype);
}
// Random classes; every fifth position is ignored.
Tensor random_targets(std::int64_t rows, std::int64_t classes, DType dtype = DType::i64) {
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < rows; ++i) targets.push_back(i % 5 == 2 ? kIgnore : RandomKey{5, 5}.below(i, classes));
  return targets_of(targets, dtype);
}

double reference(const Tensor& logits, const Tensor& targets) {
  const std::int64_t n = logits.shape().back();
  double loss = 0, valid = 0;
  for (std::int64_t row = 0; row < targets.numel(); ++row) {
    const auto target = static_cast<std::int64_t>(targets.at(row));
    if (target == kIgnore) continue;
    double max = -kInf, total = 0;
    for (std::int64_t i = 0; i < n; ++i) max = std::max(max, logits.at(row * n + i));
    for (std::int64_t i = 0; i < n; ++i) total += std::exp(logits.at(row * n + i) - max);
    loss += std::log(total) + (max - logits.at(row * n + target));
    ++valid;
  }
  return valid > 0 ? loss / valid : 0;
}

double loss_of(const Tensor& logits, std::int64_t target = 0) { return run(logits, targets_of({target})).loss.item(); }

}  // namespace

TEST_CASE_TEMPLATE("forward agrees with a naive reference", T, float, double) {
  for (DType target_dtype : {DType::i32, DType::i64})
    for (std::int64_t rows : kRows)
      for (std::int64_t width : kWidths) {
        const Tensor logits = random_normal({rows, width}, dtype_of<T>, 1);
        const Tensor targets = random_targets(rows, width, target_dtype);
        const Output out = run(logits, targets);
        CHECK(close(out.loss.item(), reference(logits, targets), kTolerance<T>));
        CHECK(out.valid == rows - (rows + 2) / 5);
      }
}

TEST_CASE("backward agrees with numeric differentiation") {
  for (std::int64_t rows : {1, 3, 8})
    for (std::int64_t width : {1, 2, 3, 8, 17, 129}) {
      const Tensor logits = random_normal({rows, width}, DType::f64, 1);
      const Tensor targets = random_targets(rows, width);
      const auto right = numeric_gradient(logits, [&] { return 0.7 * run(logits, targets).loss.item(); });
      for (bool second : {false, true}) {
        Target dlogits(logits.shape(), DType::f64, second);
        backward(logits, targets, 0.7, dlogits.grad());
        dlogits.check(right, 1e-8);
      }
    }
}

TEST_CASE("f32 backward agrees with f64, first and second write") {
  for (std::int64_t rows : kRows)
    for (std::int64_t width : kWidths) {
      const Tensor logits = random_normal({rows, width}, DType::f32, 1);
      const Tensor targets = random_targets(rows, width, DType::i32);
      const Tensor right = gradient(logits.to(DType::f64), targets, 3);
      for (bool second : {false, true}) {
        Target dlogits(logits.shape(), DType::f32, second);
        backward(logits, targets, 3, dlogits.grad());
        dlogits.check(to_doubles(right), kTolerance<float>);
      }
    }
}

TEST_CASE_TEMPLATE("N06 Cross-entropy at extreme logits", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  CHECK(loss_of(tensor({1e8, 1e8}, {1, 2}, dtype)) == doctest::Approx(0.6931472).epsilon(1e-7));
  for (double c : {0.0, 1e4, 1e6})
    CHECK(loss_of(tensor({2 + c, -1 + c}, {1, 2}, dtype)) == doctest::Approx(0.0485874).epsilon(1e-6));
  CHECK(loss_of(tensor({-30, 30}, {1, 2}, dtype)) == doctest::Approx(60.0).epsilon(1e-7));
  CHECK(loss_of(tensor({0, 1000}, {1, 2}, dtype)) == 1000);
  check_close(gradient(tensor({0, 1000}, {1, 2}, dtype), targets_of({0})), {-1, 1}, 0);
  check_close(gradient(tensor({1e8, 1e8}, {1, 2}, dtype), targets_of({0})), {-0.5, 0.5}, 1e-7);
}

TEST_CASE_TEMPLATE("N07 logits of -inf", T, float, double) {
  for (std::int64_t width : {2, 16, 33}) {
    Tensor logits = full({1, width}, -kInf, dtype_of<T>);
    logits.mutable_data<T>()[width - 1] = 0;
    CHECK(loss_of(logits, width - 1) == 0);
    CHECK(loss_of(logits, 0) == kInf);
    std::vector<double> right(static_cast<std::size_t>(width), 0.0);
    check_close(gradient(logits, targets_of({width - 1})), right, 0);
    right.front() = -1;
    right.back() = 1;
    check_close(gradient(logits, targets_of({0})), right, 0);
    logits.mutable_data<T>()[0] = static_cast<T>(kNaN);
    CHECK(std::isnan(loss_of(logits, width - 1)));
    CHECK(std::isnan(loss_of(full({1, width}, -kInf, dtype_of<T>))));
  }
}

TEST_CASE_TEMPLATE("N08 Every target ignored; averaging with some ignored", T, float, double) {
  Tensor logits = tensor({2, 1, 0, 0, 0, 0}, {2, 3}, dtype_of<T>);
  const Output some = run(logits, targets_of({0, kIgnore}));
  CHECK(some.loss.item() == doctest::Approx(0.4076060).epsilon(1e-6));
  CHECK(some.valid == 1);
  check_close(gradient(logits, targets_of({0, kIgnore})).rows(1, 1), {0, 0, 0}, 0);

  // What stands in an ignored row has no effect.
  logits.mutable_data<T>()[4] = static_cast<T>(kNaN);
  CHECK(run(logits, targets_of({0, kIgnore})).loss.item() == some.loss.item());

  const Output none = run(logits, targets_of({kIgnore, kIgnore}));
  CHECK(none.loss.item() == 0);
  CHECK(none.valid == 0);
  check_close(gradient(logits, targets_of({kIgnore, kIgnore})), std::vector<double>(6, 0.0), 0);
  Target untouched(logits.shape(), dtype_of<T>, true);
  backward(logits, targets_of({kIgnore, kIgnore}), 1, untouched.grad());
  untouched.check(std::vector<double>(6, 0.0), 0);
}

TEST_CASE("G10 Bad index or label") {
  const Tensor logits = random_normal({3, 5}, DType::f32, 1);
  for (DType dtype : {DType::i32, DType::i64})
    for (std::int64_t bad : {-4, 5}) {
      std::string text;
      try {
        run(logits, targets_of({0, bad, 7}, dtype), -1);
      } catch (const Error& e) {
        text = e.what();
      }
      for (const std::string& part : {"cross_entropy: target " + std::to_string(bad), std::string("flat position 1"),
                                      std::string("[0, 5)"), std::string("ignore_index -1")})
        CHECK_MESSAGE(text.find(part) != std::string::npos, text);
    }
  CHECK_THROWS_AS(run(logits, zeros({3})), Error);
  CHECK(run(logits, targets_of({0, 4, -1}), -1).valid == 2);
}

TEST_CASE("O12 the mean over many f32 rows does not drift") {
  const Output out = run(full({70000, 3}, 2, DType::f32), targets_of(std::vector<std::int64_t>(70000, 1)));
  CHECK(out.loss.item() == doctest::Approx(std::log(3.0)).epsilon(1e-7));
  CHECK(out.valid == 70000);
}

TEST_CASE_TEMPLATE("F12 rows at odd offsets", T, float, double) {
  for (std::int64_t width : {1, 17, 33, 129}) {
    const Tensor logits = random_normal({4, width}, dtype_of<T>, 1), targets = random_targets(4, width);
    const Output out = run(logits, targets);
    const Tensor dlogits = gradient(logits, targets);
    for (std::int64_t offset : {1, 2, 3}) {
      const Tensor view = at_offset(logits, offset);
      CHECK(same_bits(run(view, at_offset(targets, offset)).loss, out.loss));
      Target dlogits_view(logits.shape(), dtype_of<T>, false, offset);
      backward(view, targets, 1, dlogits_view.grad());
      CHECK(same_bits(dlogits_view.tensor(), dlogits));
    }
  }
}

TEST_CASE("R03 same bits for any number of threads") {
  const Tensor logits = random_normal({301, 517}, DType::f32, 1), targets = random_targets(301, 517);
  check_same_bits_for_any_threads([&] { return std::vector{run(logits, targets).loss, gradient(logits, targets)}; });
}
