// Cross-entropy kernels against naive double references, numeric differentiation, extreme logits and bad targets.
#include "core/kernels/cross_entropy.h"

#include <algorithm>
#include <string>

#include "autograd/ops.h"
#include "error_message.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

constexpr std::int64_t kIgnore = -100;

struct Output {
  Tensor loss, row_stats;
  CrossEntropyCounts counts = {-1, -1};
};
Output run(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = kIgnore) {
  Output out{full({}, kNaN, logits.dtype()), full({logits.shape().rows(), 2}, kNaN, logits.dtype())};
  cpu::cross_entropy_forward(logits, targets, {.ignore_index = ignore_index}, out.loss, out.row_stats, out.counts);
  return out;
}

void backward(const Tensor& logits, const Tensor& targets, double dloss, Grad dlogits) {
  const Output out = run(logits, targets);
  cpu::cross_entropy_backward(full({}, dloss, logits.dtype()), logits, targets, {}, out.row_stats, out.counts, dlogits);
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
        CHECK(out.counts.rows == rows - (rows + 2) / 5);
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
  CHECK(some.counts.rows == 1);
  check_close(gradient(logits, targets_of({0, kIgnore})).rows(1, 1), {0, 0, 0}, 0);

  // What stands in an ignored row has no effect.
  logits.mutable_data<T>()[4] = static_cast<T>(kNaN);
  CHECK(run(logits, targets_of({0, kIgnore})).loss.item() == some.loss.item());

  const Output none = run(logits, targets_of({kIgnore, kIgnore}));
  CHECK(none.loss.item() == 0);
  CHECK(none.counts.rows == 0);
  check_close(gradient(logits, targets_of({kIgnore, kIgnore})), std::vector<double>(6, 0.0), 0);
  Target untouched(logits.shape(), dtype_of<T>, true);
  backward(logits, targets_of({kIgnore, kIgnore}), 1, untouched.grad());
  untouched.check(std::vector<double>(6, 0.0), 0);
}

TEST_CASE("G10 Bad index or label") {
  const Tensor logits = random_normal({3, 5}, DType::f32, 1);
  for (DType dtype : {DType::i32, DType::i64})
    for (std::int64_t bad : {-4, 5})
      check_error(
          [&] {
            run(logits, targets_of({0, bad, 7}, dtype), -1);
          },
          {"cross_entropy: target " + std::to_string(bad), "flat position 1", "[0, 5)", "ignore_index -1"});
  CHECK_THROWS_AS(run(logits, zeros({3})), Error);
  CHECK(run(logits, targets_of({0, 4, -1}), -1).counts.rows == 2);
}

namespace {

// Four rows of which one is ignored, in f64 and f32.
struct Options {
  Tensor z = tensor({2, 1, 0, 0, 1, -1, 0.5, -0.5, 3, 1, 1, 1}, {4, 3}, DType::f64);
  Tensor targets = targets_of({0, 2, kIgnore, 1});
  Tensor weights = tensor({1, 2, 0.5}, {3}, DType::f64);
  Tensor q = tensor({0.7, 0.2, 0.1, 0, 0, 1, 0.25, 0.5, 0.25, 0.5, 0.5, 0}, {4, 3}, DType::f64);

  template <class F>
  void check(double loss, const std::vector<double>& gradient, F f) const {
    for (DType dtype : {DType::f64, DType::f32}) {
      Tape tape;
      const Var x = tape.watch(z.to(dtype));
      const CrossEntropy result = f(x, weights.to(dtype), q.to(dtype));
      tape.backward(result.loss);
      const double tolerance = dtype == DType::f64 ? 1e-11 : 1e-6;
      CHECK(close(result.loss.item(), loss, tolerance));
      check_close(tape.grad(x), gradient, tolerance);
    }
  }
};

}  // namespace

TEST_CASE("label smoothing, class weights and z-loss have known values") {
  const Options o;
  o.check(1.304608072518957,
          {-0.089364125853, 0.070465045907, 0.018899079946, 0.070465045907, 0.210635874147, -0.281100920054, 0, 0, 0,
           0.1, -0.2, 0.1},
          [&](const Var& z, const Tensor&, const Tensor&) {
            return cross_entropy(z, o.targets, {.label_smoothing = 0.1});
          });
  o.check(
      1.0881810068579401,
      {-0.095645441207, 0.069922420301, 0.025723020906, 0.034961210151, 0.095034422254, -0.129995632404, 0, 0, 0,
       0.190476190476, -0.380952380952, 0.190476190476},
      [&](const Var& z, const Tensor& w, const Tensor&) { return cross_entropy(z, o.targets, {.class_weights = w}); });
  o.check(1.0907760943764226,
          {-0.073430008084, 0.052040174925, 0.021389833159, 0.030098895314, 0.088658059506, -0.11875695482, 0, 0, 0,
           0.173015873016, -0.350793650794, 0.177777777778},
          [&](const Var& z, const Tensor& w, const Tensor&) {
            return cross_entropy(z, o.targets, {.label_smoothing = 0.1, .class_weights = w});
          });
  o.check(3.334957167405016,
          {0.42229301623, 0.277979399212, 0.102262906039, 0.196403242194, 0.533879364305, -0.261080618351, 0, 0, 0,
           0.344290254296, 0.010956920963, 0.344290254296},
          [&](const Var& z, const Tensor&, const Tensor&) { return cross_entropy(z, o.targets, {.z_loss = 0.5}); });
}

TEST_CASE("probability targets have known values") {
  const Options o;
  o.check(1.6988095804592067,
          {-0.008689761056, 0.011182117764, -0.002492356707, 0.061182117764, 0.166310238944, -0.227492356707,
           -0.044050323922, -0.118212743475, 0.162263067397, -0.041666666667, -0.041666666667, 0.083333333333},
          [](const Var& z, const Tensor&, const Tensor& q) { return soft_cross_entropy(z, q); });
  o.check(2.000409176290649,
          {0.025700625184, -0.036205261042, 0.010504635859, 0.026336533399, 0.077575802068, -0.103912335468,
           -0.039599396978, -0.232475590122, 0.2720749871, 0.001388888889, -0.119444444444, 0.118055555556},
          [](const Var& z, const Tensor& w, const Tensor& q) {
            return soft_cross_entropy(z, q, {.label_smoothing = 0.1, .class_weights = w});
          });
  // One-hot targets give what class indices give.
  const Tensor onehot = tensor({1, 0, 0, 0, 0, 1}, {2, 3}, DType::f64), z = o.z.rows(0, 2);
  const CrossEntropyOptions options{.label_smoothing = 0.2, .z_loss = 0.1};
  CHECK(close(soft_cross_entropy(z, onehot, options).loss.item(),
              cross_entropy(z, targets_of({0, 2}), options).loss.item(), 1e-14));
  CHECK(soft_cross_entropy(z, onehot).valid_tokens == 2);
}

TEST_CASE("nll has known values and every reduction") {
  const Options o;
  const Var l = log_softmax(o.z);
  auto loss = [&](LossReduction reduction, const Tensor& weights) {
    return nll(l, o.targets, {.class_weights = weights, .reduction = reduction});
  };
  check_close(loss(LossReduction::none, o.weights).value(),
              {0.4076059644443804, 1.2038029822221903, 0, 2.1972245773362196}, 1e-14);
  CHECK(close(loss(LossReduction::sum, o.weights).item(), 3.8086335240027904, 1e-14));
  CHECK(close(loss(LossReduction::mean, o.weights).item(), 1.0881810068579401, 1e-14));
  CHECK(close(loss(LossReduction::mean, {}).item(), cross_entropy(o.z, o.targets).loss.item(), 1e-14));
}

TEST_CASE_TEMPLATE("N06 every form of cross-entropy at extreme logits", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  const Tensor onehot = tensor({1, 0}, {1, 2}, dtype), target = targets_of({0});
  for (double c : {0.0, 1e4, 1e6}) {
    const Tensor z = tensor({2 + c, -1 + c}, {1, 2}, dtype);
    CHECK(soft_cross_entropy(z, onehot).loss.item() == doctest::Approx(0.0485874).epsilon(1e-6));
    CHECK(nll(log_softmax(z), target).item() == doctest::Approx(0.0485874).epsilon(1e-6));
    CHECK(cross_entropy(z, target, {.label_smoothing = 0.5}).loss.item() == doctest::Approx(0.7985874).epsilon(1e-6));
  }
  const Tensor z = tensor({1e8, 1e8}, {1, 2}, dtype);
  CHECK(soft_cross_entropy(z, onehot).loss.item() == doctest::Approx(0.6931472).epsilon(1e-7));
  CHECK(nll(log_softmax(z), target).item() == doctest::Approx(0.6931472).epsilon(1e-7));
  CHECK(cross_entropy(z, target, {.label_smoothing = 0.5}).loss.item() == doctest::Approx(0.6931472).epsilon(1e-7));
  CHECK(soft_cross_entropy(tensor({0, 1000}, {1, 2}, dtype), onehot).loss.item() == 1000);
}

TEST_CASE_TEMPLATE("N07 shares of 0 at infinite logits", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  Tape tape;
  const Var z = tape.watch(tensor({0, -kInf, 0}, {1, 3}, dtype));
  const Var soft = soft_cross_entropy(z, tensor({1, 0, 0}, {1, 3}, dtype)).loss;
  const Var weighted =
      cross_entropy(z, targets_of({0}), {.label_smoothing = 0.3, .class_weights = tensor({1, 0, 1}, {3}, dtype)}).loss;
  CHECK(close(soft.item(), std::log(2.0), kTolerance<T>));
  CHECK(close(weighted.item(), 0.9 * std::log(2.0), kTolerance<T>));
  tape.backward(soft + weighted);
  check_close(tape.grad(z), {-0.5 + (-0.8 + 0.45), 0, 0.5 + (-0.1 + 0.45)}, kTolerance<T>);
  CHECK(nll(tensor({0, -kInf}, {1, 2}, dtype), targets_of({1})).item() == kInf);
  CHECK(cross_entropy(z, targets_of({0}), {.label_smoothing = 0.3}).loss.item() == kInf);
  CHECK(std::isnan(soft_cross_entropy(tensor({0, kNaN}, {1, 2}, dtype), tensor({1, 0}, {1, 2}, dtype)).loss.item()));
  CHECK(std::isnan(nll(tensor({0, kNaN}, {1, 2}, dtype), targets_of({1})).item()));
}

TEST_CASE_TEMPLATE("N08 nothing counted, with every option", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  const Tensor weights = tensor({0, 1}, {2}, dtype), x = tensor({1, 2, kNaN, 0}, {2, 2}, dtype);
  const Tensor ignored = targets_of({kIgnore, kIgnore});
  Tape tape;
  const Var z = tape.watch(x);
  const CrossEntropyOptions all{.label_smoothing = 0.1, .class_weights = weights, .z_loss = 1};
  const CrossEntropy none = cross_entropy(z, ignored, all);
  CHECK(none.loss.item() == 0);
  CHECK(none.valid_tokens == 0);
  Var total = none.loss;
  for (LossReduction reduction : {LossReduction::mean, LossReduction::sum, LossReduction::none}) {
    const Var loss = sum(nll(z, ignored, {.class_weights = weights, .reduction = reduction}));
    CHECK(loss.item() == 0);
    total = total + loss;
  }
  // Targets of weight 0 count as tokens, but weigh nothing.
  const CrossEntropy weightless = cross_entropy(z, targets_of({0, kIgnore}), {.class_weights = weights});
  CHECK(weightless.loss.item() == 0);
  CHECK(weightless.valid_tokens == 1);
  CHECK(nll(z, targets_of({0, 0}), {.class_weights = weights}).item() == 0);
  tape.backward(total + weightless.loss);
  check_close(tape.grad(z), {0, 0, 0, 0}, 0);
  const Tensor nothing = zeros({0, 2}, dtype);
  CHECK(soft_cross_entropy(nothing, nothing).loss.item() == 0);
}

TEST_CASE("N10 Loss broadcasts silently: cross-entropy forms") {
  const Tensor z = random_normal({2, 3}, DType::f32, 1);
  CHECK_THROWS_AS(soft_cross_entropy(z, zeros({1, 3})), Error);
  CHECK_THROWS_AS(soft_cross_entropy(z, zeros({2, 3}, DType::f64)), Error);
  CHECK_THROWS_AS(nll(z, targets_of({0})), Error);
  CHECK_THROWS_AS(nll(z, targets_of({0, 3})), Error);
  CHECK_THROWS_AS(cross_entropy(z, targets_of({0, 1}), {.label_smoothing = 1.5}), Error);
  CHECK_THROWS_AS(cross_entropy(z, targets_of({0, 1}), {.class_weights = zeros({2})}), Error);
  CHECK_THROWS_AS(cross_entropy(z, targets_of({0, 1}), {.class_weights = full({3}, -1)}), Error);
  CHECK_THROWS_AS(cross_entropy(z, targets_of({0, 1}), {.class_weights = zeros({3}, DType::f64)}), Error);
}

TEST_CASE("O12 the mean over many f32 rows does not drift") {
  const Output out = run(full({70000, 3}, 2, DType::f32), targets_of(std::vector<std::int64_t>(70000, 1)));
  CHECK(out.loss.item() == doctest::Approx(std::log(3.0)).epsilon(1e-7));
  CHECK(out.counts.rows == 70000);
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
  const Tensor weights = full({517}, 0.5), q = full({301, 517}, 0.25);
  const CrossEntropyOptions all{.label_smoothing = 0.1, .class_weights = weights, .z_loss = 1};
  check_same_bits_for_any_threads([&] {
    Tape tape;
    const Var z = tape.watch(logits), vq = tape.watch(q);
    const Var loss = cross_entropy(z, targets, all).loss + soft_cross_entropy(z, vq, all).loss + nll(z, targets);
    tape.backward(loss);
    return std::vector{loss.value(), tape.grad(z), tape.grad(vq)};
  });
}
