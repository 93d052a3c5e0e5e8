// rmsnorm, batchnorm and groupnorm: references, running statistics, special values, threads, what they refuse.
#include "core/kernels/batchnorm.h"
#include "layers/batchnorm.h"
#include "layers/groupnorm.h"
#include "layers/layernorm.h"
#include "layers/rmsnorm.h"
#include "tests/row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

// Normalises the elements of x that `same(i, j)` puts together, with the statistics in double.
template <class Same>
std::vector<double> reference(const Tensor& x, double eps, Same same) {
  std::vector<double> y;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    double count = 0, mean = 0, variance = 0;
    for (std::int64_t j = 0; j < x.numel(); ++j)
      if (same(i, j)) mean += x.at(j), ++count;
    mean /= count;
    for (std::int64_t j = 0; j < x.numel(); ++j)
      if (same(i, j)) variance += std::pow(x.at(j) - mean, 2) / count;
    y.push_back((x.at(i) - mean) / std::sqrt(variance + eps));
  }
  return y;
}

Tensor batchnorm_of(const Tensor& x, BatchNorm1d& layer) { return layer(x).value(); }

}  // namespace

TEST_CASE_TEMPLATE("rmsnorm agrees with its formula", T, float, double) {
  for (std::int64_t width : kWidths) {
    const Tensor x = random_normal({3, width}, dtype_of<T>, 1), weight = random_normal({width}, dtype_of<T>, 2);
    std::vector<double> right;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      double squares = 0;
      for (std::int64_t j = 0; j < width; ++j) squares += std::pow(x.at(i / width * width + j), 2);
      right.push_back(x.at(i) / std::sqrt(squares / static_cast<double>(width) + 1e-5) * weight.at(i % width));
    }
    check_close(rmsnorm(x, weight).value(), right, kTolerance<T>);
  }
  const Tensor ones = full({4}, 1, dtype_of<T>);
  check_close(rmsnorm(zeros({1, 4}, dtype_of<T>), ones).value(), {0, 0, 0, 0}, 0);
  check_close(rmsnorm(tensor({1, kNaN, 2, 3}, {4}, dtype_of<T>), ones).value(), {kNaN, kNaN, kNaN, kNaN}, 0);
}

TEST_CASE_TEMPLATE("batchnorm and groupnorm agree with a naive reference", T, float, double) {
  for (const Shape& s : {Shape{3, 5}, Shape{7, 33}, Shape{2, 3, 17}, Shape{2, 4, 1}, Shape{1, 2, 3}}) {
    CAPTURE(s);
    const Tensor x = random_normal(s, dtype_of<T>, 1);
    const std::int64_t channels = s[1], inner = s.rank() == 3 ? s[2] : 1;
    const Tensor one = full({channels}, 1, dtype_of<T>), zero = zeros({channels}, dtype_of<T>);
    const auto channel = [&](std::int64_t i) { return i / inner % channels; };
    check_close(batchnorm(x, one, zero, zero.clone(), one.clone(), true, 0.1, 0.1).value(),
                reference(x, 0.1, [&](auto i, auto j) { return channel(i) == channel(j); }), kTolerance<T>);
    for (std::int64_t groups = 1; groups <= channels; ++groups) {
      if (channels % groups != 0) continue;
      const std::int64_t run = channels / groups * inner;
      check_close(groupnorm(x, one, zero, groups, 0.1).value(),
                  reference(x, 0.1, [&](auto i, auto j) { return i / run == j / run; }), kTolerance<T>);
    }
  }
}

TEST_CASE("N01 batchnorm and groupnorm with a large mean") {
  const std::vector<double> right{-1.3416354, -0.4472118, 0.4472118, 1.3416354};
  const Tensor x = tensor({40000, 40001, 40002, 40003});
  BatchNorm1d batch(1);
  check_close(batch(x.reshape({4, 1})).value(), right, 1e-6);
  check_close(batch(x.reshape({1, 1, 4})).value(), right, 1e-6);
  check_close(GroupNorm(1, 4)(x.reshape({1, 4})).value(), right, 1e-6);
  check_close(GroupNorm(1, 1)(x.reshape({1, 1, 4})).value(), right, 1e-6);
}

TEST_CASE("N01 backward of batchnorm and groupnorm with a large mean") {
  const auto gradients = [](auto layer, const Tensor& input) {
    convert(layer, input.dtype());
    Tape tape;
    const Var x = tape.watch(input);
    tape.backward(sum(layer(x) * Var(random_normal(input.shape(), DType::f32, 3).to(input.dtype()))));
    return std::vector{tape.grad(x), layer.weight.grad(), layer.bias.grad()};
  };
  for (const Shape& s : {Shape{9, 4}, Shape{3, 4, 17}}) {
    Tensor x = random_normal(s, DType::f32, 1);
    for (std::int64_t i = 0; i < x.numel(); ++i) x.mutable_data<float>()[i] = 3000 + 0.01f * x.data<float>()[i];
    const auto check = [&](auto make) {
      const auto got = gradients(make(), x), right = gradients(make(), x.to(DType::f64));
      for (std::size_t i = 0; i < got.size(); ++i) check_close(got[i], to_doubles(right[i]), 1e-4);
    };
    check([] { return BatchNorm1d(4); });
    check([] { return GroupNorm(2, 4); });
  }
}

TEST_CASE("N04 BatchNorm running variance, single value, empty batch") {
  for (const Shape& s : {Shape{3, 1}, Shape{1, 1, 3}, Shape{3, 1, 1}}) {
    BatchNorm1d layer(1, 1);
    const Tensor y = batchnorm_of(tensor({2, 2, -4}, s), layer);
    CHECK(layer.running_mean.item() == doctest::Approx(0));
    CHECK(layer.running_var.item() == doctest::Approx(12));
    CHECK(y.at(0) == doctest::Approx(0.7071063).epsilon(1e-6));
  }
  BatchNorm1d layer(3);
  CHECK_THROWS_WITH_AS(layer(zeros({1, 3})),
                       "batchnorm: x is [1, 3], one value per channel, whose variance is not defined; use a larger "
                       "batch, or eval mode",
                       Error);
  CHECK_THROWS_AS(layer(zeros({1, 3, 1})), Error);
  CHECK_NOTHROW(layer(zeros({1, 3, 2})));

  BatchNorm1d fresh(3);
  const Tensor mean = fresh.running_mean.clone(), var = fresh.running_var.clone();
  for (const Shape& s : {Shape{0, 3}, Shape{2, 3, 0}}) {
    Tape tape;
    const Var x = tape.watch(zeros(s));
    tape.backward(sum(fresh(x)));
    CHECK(fresh.weight.grad().at(2) == 0);
    CHECK(fresh.bias.grad().at(2) == 0);
    CHECK(tape.grad(x).shape() == s);
  }
  CHECK(same_bits(fresh.running_mean, mean));
  CHECK(same_bits(fresh.running_var, var));
}

TEST_CASE("N04 momentum is the weight of the new batch") {
  BatchNorm1d layer(1);
  layer(tensor({9, 11}, {2, 1}));  // mean 10, unbiased variance 2
  CHECK(layer.running_mean.item() == doctest::Approx(1));
  CHECK(layer.running_var.item() == doctest::Approx(1.1));
}

TEST_CASE("N04 the eval-mode gradient is weight / sqrt(running_var + eps)") {
  BatchNorm1d layer(2);
  layer.running_mean = tensor({1, -1});
  layer.running_var = tensor({4, 0.25});
  layer.weight.assign(tensor({3, 5}));
  layer.eval();
  Tape tape;
  const Var x = tape.watch(tensor({1, 2, kNaN, 4, 5, 6}, {3, 2}));
  const Tensor mean = layer.running_mean.clone();
  const Tensor dy = tensor({1, -1, 2, 3, 0, 1}, {3, 2});
  tape.backward(sum(layer(x) * Var(dy)));
  const double first = 3 / std::sqrt(4 + 1e-5), second = 5 / std::sqrt(0.25 + 1e-5);
  check_close(tape.grad(x), {first, -second, 2 * first, 3 * second, 0, second}, 1e-6);
  CHECK(same_bits(layer.running_mean, mean));
}

TEST_CASE("a NaN stays in its channel, or its group") {
  BatchNorm1d batch(3);
  Tensor x = random_normal({4, 3}, DType::f32, 1);
  x.mutable_data<float>()[4] = std::numeric_limits<float>::quiet_NaN();  // row 1, channel 1
  const Tensor y = batch(x).value();
  for (std::int64_t i = 0; i < 12; ++i) CHECK(std::isnan(y.at(i)) == (i % 3 == 1));
  CHECK(std::isnan(batch.running_var.at(1)));
  CHECK(std::isfinite(batch.running_var.at(2)));
  const Tensor g = GroupNorm(2, 4)(x.reshape({3, 4})).value();
  for (std::int64_t i = 0; i < 12; ++i) CHECK(std::isnan(g.at(i)) == (i == 4 || i == 5));
}

TEST_CASE("running statistics are buffers, and a value saved before they change is still right") {
  BatchNorm1d layer(2);
  CHECK(buffers(layer).size() == 2);
  CHECK(buffers(layer)[0].name == "running_mean");
  CHECK(parameters(layer).size() == 2);
  Tape tape;
  const Var x = tape.watch(random_normal({5, 2}, DType::f32, 1));
  layer.eval();
  const Var y = layer(x);
  layer.train();
  layer(random_normal({5, 2}, DType::f32, 2));
  CHECK_NOTHROW(tape.backward(sum(y)));
}

TEST_CASE("R03 same bits for any number of threads") {
  const Tensor x = random_normal({211, 67, 19}, DType::f32, 1), flat = random_normal({1031, 257}, DType::f32, 2);
  const auto run = [&](auto layer, const Tensor& input) {
    Tape tape;
    const Var in = tape.watch(input), y = layer(in);
    tape.backward(sum(y * Var(random_normal(input.shape(), DType::f32, 3))));
    std::vector<Tensor> results{y.value(), tape.grad(in)};
    for (const NamedParameter& p : parameters(layer)) results.push_back(p.parameter->grad());
    for (const NamedBuffer& b : buffers(layer)) results.push_back(*b.buffer);
    return results;
  };
  check_same_bits_for_any_threads([&] { return run(BatchNorm1d(67), x); });
  check_same_bits_for_any_threads([&] { return run(BatchNorm1d(257), flat); });
  check_same_bits_for_any_threads([&] { return run(GroupNorm(1, 67), x); });
  check_same_bits_for_any_threads([&] { return run(RMSNorm(257), flat); });
  check_same_bits_for_any_threads([&] { return run(LayerNorm(257, LayerNormForm::std_plus_eps), flat); });
}

TEST_CASE("what the normalisations refuse") {
  CHECK_THROWS_WITH_AS(GroupNorm(5, 12), "groupnorm: 5 groups do not divide 12 channels; use one of 1, 2, 3, 4, 6, ...",
                       Error);
  CHECK_THROWS_AS(GroupNorm(0, 12), Error);
  CHECK_THROWS_AS(GroupNorm(2, 4)(zeros({3, 5})), Error);
  CHECK_THROWS_AS(groupnorm(zeros({4}), zeros({4}), zeros({4}), 2), Error);
  CHECK_THROWS_AS(BatchNorm1d(0), Error);
  CHECK_THROWS_AS(BatchNorm1d(2, 1.5), Error);
  CHECK_THROWS_WITH_AS(BatchNorm1d(2)(zeros({3, 4})), "batchnorm: x is [3, 4], so weight must be [4], not [2]", Error);
  CHECK_THROWS_AS(BatchNorm1d(2)(zeros({3})), Error);
  CHECK_THROWS_WITH_AS(RMSNorm(3)(zeros({2, 4})), "rmsnorm: x is [2, 4], so weight must be [4], not [3]", Error);
  CHECK_THROWS_AS(RMSNorm(0), Error);
}
