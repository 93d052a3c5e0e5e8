// Reductions other than sums, running sums: special values, empty axes, accuracy, ties, bits for any thread count.
#include "autograd/ops.h"
#include "core/order.h"
#include "row_testing.h"
#include "tests/allocation_counter.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

using Reduce = Var (*)(const Var&, Axes, bool);
Var variance(const Var& x, Axes axes, bool keepdim) { return tapestry::var(x, axes, keepdim); }
Var deviation(const Var& x, Axes axes, bool keepdim) { return stddev(x, axes, keepdim); }
const std::vector<Reduce> kReductions{tapestry::max, tapestry::min, prod, variance, deviation, norm, logsumexp};

struct Result {
  Tensor y, dx;
};
// f(x) and the gradient of its sum.
template <class F>
Result run(const Tensor& x, F f) {
  Tape tape;
  const Var v = tape.watch(x);
  const Var y = f(v);
  tape.backward(sum(y));
  return {y.value(), tape.grad(v)};
}
template <class F>
void check_all(const Tensor& x, F f, const std::vector<double>& y, const std::vector<double>& dx,
               double tolerance = 0) {
  const Result r = run(x, f);
  check_close(r.y, y, tolerance);
  check_close(r.dx, dx, tolerance);
}
const auto over_rows = [](auto f) { return [f](const Var& x) { return f(x, {1}, false); }; };
const auto over_all = [](auto f) { return [f](const Var& x) { return f(x, {}, false); }; };

}  // namespace

TEST_CASE("G11 max and min: the gradient goes to the first of equal elements") {
  const Tensor x = tensor({2, 5, 5, 1, 1, 3, -2, -2, 3}, {3, 3});
  check_all(x, over_rows(tapestry::max), {5, 3, 3}, {0, 1, 0, 0, 0, 1, 0, 0, 1});
  check_all(x, over_rows(tapestry::min), {2, 1, -2}, {1, 0, 0, 1, 0, 0, 1, 0, 0});
  check_all(full({40}, -kInf), over_all(tapestry::max), {-kInf}, [] {
    std::vector<double> first(40);
    first[0] = 1;
    return first;
  }());
  // Over axes 0 and 2 the slices are {7, 1, 7, 0} and {2, 3, 3, 3}.
  check_all(tensor({7, 1, 2, 3, 7, 0, 3, 3}, {2, 2, 2}),
            [](const Var& v) {
              return tapestry::max(v, {0, 2});
            },
            {7, 3}, {1, 0, 0, 1, 0, 0, 0, 0});
}

TEST_CASE("max and min: NaN wins, and its gradient is NaN at the first one") {
  for (std::int64_t n : {1, 7, 33, 200})
    for (std::int64_t at : {std::int64_t{0}, n / 2, n - 1})
      for (auto f : {tapestry::max, tapestry::min}) {
        Tensor x = random_normal({n}, DType::f32, 1);
        x.mutable_data<float>()[at] = std::numeric_limits<float>::quiet_NaN();
        std::vector<double> dx(static_cast<std::size_t>(n));
        dx[static_cast<std::size_t>(at)] = kNaN;
        check_all(x, over_all(f), {kNaN}, dx);
      }
}

TEST_CASE("max and min of columns and of several axes agree with a plain loop") {
  const Tensor x = random_normal({5, 37, 19}, DType::f32, 3);
  const Tensor largest = tapestry::max(x, {0, 1}).value(), smallest = tapestry::min(x, {0, 2}).value();
  for (std::int64_t k = 0; k < 19; ++k) {
    double best = -kInf;
    for (std::int64_t i = 0; i < 5 * 37; ++i) best = std::max(best, x.at(i * 19 + k));
    CHECK(largest.at(k) == best);
  }
  for (std::int64_t j = 0; j < 37; ++j) {
    double best = kInf;
    for (std::int64_t i = 0; i < 5; ++i)
      for (std::int64_t k = 0; k < 19; ++k) best = std::min(best, x.at((i * 37 + j) * 19 + k));
    CHECK(smallest.at(j) == best);
  }
}

TEST_CASE("G11 prod: zeros, and factors beyond the range of float on the way") {
  check_all(tensor({2, 0, 3, 4}), over_all(prod), {0}, {0, 24, 0, 0});
  check_all(tensor({2, 0, 3, 0}), over_all(prod), {0}, {0, 0, 0, 0});
  check_all(tensor({0}), over_all(prod), {0}, {1});
  CHECK(run(zeros({3, 0}), over_rows(prod)).dx.shape() == Shape{3, 0});
  check_all(tensor({1e30, 1e30, 1e-30, 1e-30}), over_all(prod), {1}, {1e-30, 1e-30, 1e30, 1e30}, 1e-6);
  check_all(tensor({1e30, 1e30, 0}), over_all(prod), {0}, {0, 0, kInf});
  check_all(tensor({2, kNaN}), over_all(prod), {kNaN}, {kNaN, 2});
}

TEST_CASE("G11 var and stddev: both corrections, equal elements, a large mean") {
  const Tensor x = tensor({1, 2, 4});  // mean 7/3, squares 14/3
  check_close(tapestry::var(x).value(), {7.0 / 3}, 1e-6);
  check_close(tapestry::var(x, {}, false, 0).value(), {14.0 / 9}, 1e-6);
  check_close(stddev(x).value(), {std::sqrt(7.0 / 3)}, 1e-6);
  check_all(full({2, 1000}, 0.1), over_rows(deviation), {0, 0}, std::vector<double>(2000));
  check_all(full({2, 1000}, 0.1), over_rows(variance), {0, 0}, std::vector<double>(2000));
  const Tensor shifted = tensor({1e6 - 1, 1e6, 1e6 + 1});
  check_all(shifted, over_all(variance), {1}, {-1, 0, 1}, 1e-6);
  check_all(shifted, over_all(deviation), {1}, {-0.5, 0, 0.5}, 1e-6);
  check_close(tapestry::var(tensor({1, kNaN, 3})).value(), {kNaN}, 0);
  check_close(tapestry::var(tensor({1, kInf, 3})).value(), {kNaN}, 0);
}

TEST_CASE("G11 norm at zero has gradient zero; no overflow or underflow on the way") {
  check_all(tensor({0, 0}), over_all(norm), {0}, {0, 0});
  check_all(tensor({3, 4, 0, 0}, {2, 2}), over_rows(norm), {5, 0}, {0.6, 0.8, 0, 0}, 1e-7);
  const double root = std::sqrt(0.5);
  const auto check_scale = [&](double size) {
    const Result r = run(tensor({size, -size}), over_all(norm));
    CHECK(r.y.item() / size == doctest::Approx(2 * root).epsilon(1e-5));
    check_close(r.dx, {root, -root}, 1e-5);
  };
  for (double size : {1e20, 2e38, 1e-20, 1e-37}) check_scale(size);
  CHECK(norm(tensor({1e-42, 0})).item() == double{1e-42f});
  check_close(norm(tensor({kInf, 1})).value(), {kInf}, 0);
  check_close(norm(tensor({kInf, kNaN})).value(), {kNaN}, 0);
}

TEST_CASE("N07 logsumexp at infinities") {
  check_all(tensor({-kInf, -kInf}), over_all(logsumexp), {-kInf}, {0, 0});
  check_all(tensor({-kInf, 0}), over_all(logsumexp), {0}, {0, 1});
  check_all(tensor({kInf, 0}), over_all(logsumexp), {kInf}, {kNaN, 0});
  check_close(logsumexp(tensor({kInf, -kInf})).value(), {kInf}, 0);
  check_close(logsumexp(tensor({kInf, kNaN})).value(), {kNaN}, 0);
  check_close(logsumexp(tensor({-kInf, kNaN})).value(), {kNaN}, 0);
  check_all(tensor({1000, 1001}), over_all(logsumexp), {1001.3132617}, {0.2689414, 0.7310586}, 1e-6);
  // The gradient does not suffer from the digits that the value loses.
  check_all(tensor({1e6, 1e6 + 1}), over_all(logsumexp), {1e6 + 1.3132617}, {0.2689414, 0.7310586}, 1e-6);
  check_all(
      tensor({-kInf, 1, -kInf, 1}, {2, 2}), [](const Var& x) { return logsumexp(x, {0}); }, {-kInf, 1.6931472},
      {0, 0.5, 0, 0.5}, 1e-6);
}

TEST_CASE("cumsum runs along one axis, and its gradient backwards") {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}, {2, 3});
  check_all(x, [](const Var& v) { return cumsum(v, 1); }, {1, 3, 6, 4, 9, 15}, {3, 2, 1, 3, 2, 1});
  check_all(x, [](const Var& v) { return cumsum(v, -2); }, {1, 2, 3, 5, 7, 9}, {2, 2, 2, 1, 1, 1});
  check_close(cumsum(tensor({1, kInf, 1, -kInf, 1}), 0).value(), {1, kInf, kInf, kNaN, kNaN}, 0);
  const Tensor tenths = cumsum(full({1000000}, 0.1), 0).value();
  CHECK(tenths.at(999999) == doctest::Approx(double{0.1f} * 1e6).epsilon(1e-7));
}

TEST_CASE("O12 f32 statistics keep their accuracy over a million elements") {
  constexpr std::int64_t kMillion = 1000000;
  CHECK(norm(full({kMillion}, 0.1)).item() == doctest::Approx(double{0.1f} * 1000).epsilon(3e-7));
  CHECK(logsumexp(full({kMillion}, 0.1)).item() == doctest::Approx(0.1 + std::log(1e6)).epsilon(3e-7));
  Tensor x = full({kMillion}, 1000.1);
  for (std::int64_t i = 0; i < kMillion; i += 2) x.mutable_data<float>()[i] = 1000.0f;
  const double half = (double{1000.1f} - 1000) / 2;
  CHECK(tapestry::var(x, {}, false, 0).item() == doctest::Approx(half * half).epsilon(1e-6));
}

TEST_CASE("over nothing") {
  const Tensor none = zeros({0, 3});
  check_close(prod(none, {0}).value(), {1, 1, 1}, 0);
  check_close(norm(none, {0}).value(), {0, 0, 0}, 0);
  check_close(logsumexp(none, {0}).value(), {-kInf, -kInf, -kInf}, 0);
  check_close(logsumexp(zeros({3, 0}), {1}).value(), {-kInf, -kInf, -kInf}, 0);
  CHECK(run(none, [](const Var& x) { return logsumexp(x, {0}); }).dx.shape() == none.shape());
  for (Reduce f : kReductions) {
    CHECK(f(none, {1}, false).shape() == Shape{0});
    CHECK(f(none, {1}, true).shape() == Shape{0, 1});
  }
  CHECK_THROWS_WITH_AS(tapestry::max(none, {0}), "max: needs at least one element for each result, x is [0, 3]", Error);
  CHECK_THROWS_AS(tapestry::min(none), Error);
  CHECK_THROWS_AS(mean(none), Error);
  CHECK_THROWS_AS(tapestry::var(none, {}, false, 0), Error);
  CHECK_THROWS_AS(tapestry::var(zeros({3, 1}), {1}), Error);
  CHECK_THROWS_AS(stddev(zeros({})), Error);
  CHECK_THROWS_AS(tapestry::var(zeros({3}), {}, false, 3), Error);
  CHECK(tapestry::var(zeros({}), {}, false, 0).item() == 0);
}

TEST_CASE("shapes and axes that do not fit") {
  for (Reduce f : kReductions) {
    CHECK(f(zeros({2, 3, 4}), {-1, 0}, true).shape() == Shape{1, 3, 1});
    CHECK(f(zeros({2, 3, 4}), {-1, 0}, false).shape() == Shape{3});
    CHECK_THROWS_AS(f(zeros({2, 3}), {2}, false), Error);
    CHECK_THROWS_AS(f(zeros({2, 3}), {1, -1}, false), Error);
  }
  CHECK_THROWS_AS(cumsum(zeros({}), 0), Error);
  CHECK_THROWS_AS(cumsum(zeros({3}), 1), Error);
}

TEST_CASE("columns, rows, runs and their chunks give the same results") {
  // Few columns of many rows, a width between one vector and a tile, several tiles, and runs that lie apart.
  for (const Shape& shape : {Shape{3000, 2, 3}, Shape{70, 9, 21}, Shape{5, 3, 150}, Shape{1100, 2, 67}}) {
    Tensor x = random_normal(shape, DType::f64, 4);
    double* p = x.mutable_data<double>();
    for (std::int64_t i = 0; i < x.numel(); ++i) p[i] = 1 + 0.01 * p[i];
    for (const Reduce f : kReductions) {
      const auto columns = [&](const Axes& axes) { return run(x, [&](const Var& v) { return f(v, axes, false); }); };
      // The reduced axes come last, and are then one run.
      const auto rows = [&](const Axes& order, int kept) {
        return run(x, [&](const Var& v) {
          const Var moved = permute(v, order);
          Shape flat = moved.shape();
          flat = kept == 1 ? Shape{flat[0], flat[1] * flat[2]} : Shape{flat[0] * flat[1], flat[2]};
          return f(reshape(moved, flat), {1}, false);
        });
      };
      const auto compare = [](const Result& a, const Result& b) {
        check_close(a.y, to_doubles(b.y), 1e-11);
        check_close(a.dx, to_doubles(b.dx), 1e-11);
      };
      compare(columns({0}), rows({1, 2, 0}, 2));
      compare(columns({1}), rows({0, 2, 1}, 2));
      compare(columns({0, 1}), rows({2, 0, 1}, 1));
      compare(columns({0, 2}), rows({1, 0, 2}, 1));
      compare(columns({1, 2}), rows({0, 1, 2}, 1));
    }
  }
}

TEST_CASE("argmax and argmin: the first of equal elements, in columns and rows") {
  Tensor x = full({900, 70}, -kInf);
  for (const std::int64_t row : {0, 333, 899})
    for (std::int64_t c = 0; c < 70; ++c) {
      x.mutable_data<float>()[row * 70 + c] = 1;
      if (c % 3 == 1) x.mutable_data<float>()[row * 70 + c] = std::numeric_limits<float>::quiet_NaN();
      if (c % 3 == 2 && row < 700) x.mutable_data<float>()[row * 70 + c] = -kInf;
    }
  const std::vector<std::int64_t> columns = argmax(x, {0}).to_vector<std::int64_t>();
  for (std::int64_t c = 0; c < 70; ++c) CHECK(columns[static_cast<std::size_t>(c)] == (c % 3 == 2 ? 899 : 0));
  const std::vector<std::int64_t> rows = argmax(transpose(x).value(), {1}).to_vector<std::int64_t>();
  CHECK(rows == columns);
  CHECK(argmin(x, {0}).at(0) == 1);
  CHECK(argmin(x, {0}).at(2) == 0);
  CHECK(argmax(full({70, 900}, -kInf), {1}).at(69) == 0);
  CHECK(argmax(tensor({kNaN, 1, kNaN}), {}).item() == 0);
  CHECK(argmax(full({5000}, 3), {}).item() == 0);
}

TEST_CASE("same bits for any number of threads") {
  for (const Shape& shape : {Shape{100003}, Shape{2001, 70}, Shape{50, 41, 33}}) {
    const Tensor x = random_normal(shape, DType::f32, 1);
    for (const Axes& axes : {Axes{0}, Axes{-1}, Axes{}}) {
      check_same_bits_for_any_threads([&] {
        std::vector<Tensor> all;
        for (Reduce f : kReductions) {
          const Result r = run(x, [&](const Var& v) { return f(v, axes, false); });
          all.insert(all.end(), {r.y, r.dx});
        }
        const Result r = run(x, [](const Var& v) { return cumsum(v, 0); });
        all.insert(all.end(), {r.y, r.dx});
        return all;
      });
    }
  }
}

TEST_CASE("no heap allocation from the second call on") {
  const Tensor x = random_normal({40, 30, 20}, DType::f32, 1);
  const auto step = [&] {
    Tape tape;
    const Var v = tape.watch(x);
    Var total = sum(cumsum(v, 1));
    for (Reduce f : kReductions)
      for (const Axes& axes : {Axes{0}, Axes{1, 2}, Axes{}}) total = total + sum(f(v, axes, true));
    tape.backward(total);
  };
  step();
  step();
  const std::int64_t before = heap_allocations;
  step();
  CHECK(heap_allocations == before);
}
