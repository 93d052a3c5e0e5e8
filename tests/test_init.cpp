// Initial weights: bounds and deviations of the named schemes, and what they refuse.
#include <doctest/doctest.h>

#include <functional>

#include "layers/init.h"
#include "tests/compare.h"

using namespace tapestry;

namespace {

struct Moments {
  double largest = 0, mean = 0, std = 0;
};

// Over at least 1e5 draws, filling one weight of this shape again and again.
Moments moments(const Shape& shape, const std::function<void(Parameter&, Rng&)>& fill) {
  Rng rng(7);
  Parameter p(shape);
  Moments m;
  double sum = 0, squares = 0, count = 0;
  while (count < 1e5) {
    fill(p, rng);
    for (float value : p.value().to_vector<float>()) {
      m.largest = std::max(m.largest, std::abs(static_cast<double>(value)));
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    count += static_cast<double>(p.numel());
  }
  m.mean = sum / count;
  m.std = std::sqrt(squares / count - m.mean * m.mean);
  return m;
}

void check_uniform(const Moments& m, double bound) {
  CHECK(m.largest <= bound * (1 + 1e-6));
  CHECK(m.largest > 0.999 * bound);
  CHECK(m.std == doctest::Approx(bound / std::sqrt(3.0)).epsilon(0.01));
  CHECK(std::abs(m.mean) < 0.01 * bound);
}

void check_normal(const Moments& m, double std) {
  CHECK(m.std == doctest::Approx(std).epsilon(0.01));
  CHECK(std::abs(m.mean) < 0.012 * std);
  CHECK(m.largest > 3.5 * std);  // not a uniform
}

}  // namespace

TEST_CASE("R02 Fan-in and fan-out") {
  const Shape weight{5, 3};  // in = 5, out = 3
  CHECK(init::fans(weight).in == 5);
  CHECK(init::fans(weight).out == 3);

  check_uniform(moments(weight, [](Parameter& p, Rng& r) { init::xavier_uniform(p, r); }), 0.8660254);
  check_normal(moments(weight, [](Parameter& p, Rng& r) { init::xavier_normal(p, r); }), 0.5);
  check_normal(moments(weight, [](Parameter& p, Rng& r) { init::kaiming_normal(p, r); }), 0.6324555);
  check_uniform(moments(weight, [](Parameter& p, Rng& r) { init::kaiming_uniform(p, r); }), 1.0954451);

  const auto mode = init::Mode::fan_out;
  check_normal(moments(weight, [=](Parameter& p, Rng& r) { init::kaiming_normal(p, r, mode); }), 0.8164966);
  check_uniform(moments(weight, [=](Parameter& p, Rng& r) { init::kaiming_uniform(p, r, mode); }), 1.4142136);
  check_uniform(moments(weight, [](Parameter& p, Rng& r) { init::xavier_uniform(p, r, 2); }), 1.7320508);
  check_normal(moments(weight, [](Parameter& p, Rng& r) { init::xavier_normal(p, r, 2); }), 1.0);
}

TEST_CASE("R02 a convolution's weight is [out, in / groups, taps...]") {
  const init::Fans f = init::fans({4, 5, 3, 2});
  CHECK(f.in == 30);
  CHECK(f.out == 24);
  const Shape weight{3, 5, 7};
  check_normal(moments(weight, [](Parameter& p, Rng& r) { init::kaiming_normal(p, r); }), std::sqrt(2.0 / 35));
  const auto mode = init::Mode::fan_out;
  check_normal(moments(weight, [=](Parameter& p, Rng& r) { init::kaiming_normal(p, r, mode); }), std::sqrt(2.0 / 21));
  check_uniform(moments(weight, [](Parameter& p, Rng& r) { init::xavier_uniform(p, r); }), std::sqrt(6.0 / 56));
}

TEST_CASE("R02 rank below 2 throws, no elements are left alone") {
  Rng rng(1);
  Parameter vector(Shape{4}), number(Shape{}), nothing(Shape{0, 5});
  CHECK_THROWS_WITH_AS(init::xavier_uniform(vector, rng),
                       "init: fan_in and fan_out need a weight of rank 2 or more, not [4]; use normal, uniform or "
                       "constant for a vector",
                       Error);
  CHECK_THROWS_AS(init::xavier_normal(number, rng), Error);
  CHECK_THROWS_AS(init::kaiming_uniform(vector, rng), Error);
  CHECK_THROWS_AS(init::kaiming_normal(number, rng), Error);
  CHECK_NOTHROW(init::kaiming_normal(nothing, rng));
  CHECK_NOTHROW(init::xavier_uniform(nothing, rng));
  Parameter neither(Shape{0, 0});
  CHECK_NOTHROW(init::xavier_uniform(neither, rng));
}

TEST_CASE("uniform, normal, constant and zeros") {
  Rng rng(3);
  Parameter p(Shape{200, 50});
  init::uniform(p, rng, 2, 3);
  for (float value : p.value().to_vector<float>()) CHECK((value >= 2 && value <= 3));
  init::constant(p, 1.5);
  CHECK(p.value().at(777) == 1.5);
  init::zeros(p);
  CHECK(max_abs(p.value()) == 0);
  check_normal(moments({100, 100}, [](Parameter& q, Rng& r) { init::normal(q, r); }), 0.02);
  init::normal(p, rng, 0, -4);
  CHECK(p.value().at(0) == -4);
  CHECK_THROWS_AS(init::normal(p, rng, -1), Error);
  CHECK_THROWS_AS(init::uniform(p, rng, 1, -1), Error);
}

TEST_CASE("GPT-2's residual projections shrink with the depth") {
  check_normal(moments({64, 64}, [](Parameter& p, Rng& r) { init::gpt2_residual(p, r, 8); }), 0.005);
  Rng rng(1);
  Parameter p(Shape{2, 2});
  CHECK_THROWS_AS(init::gpt2_residual(p, rng, 0), Error);
}

TEST_CASE("a seed gives the same weights, every call others") {
  Parameter a(Shape{9, 7}), b(Shape{9, 7});
  Rng first(11), second(11), other(12);
  init::xavier_normal(a, first);
  init::xavier_normal(b, second);
  CHECK(same_bits(a.value(), b.value()));
  init::xavier_normal(b, second);
  CHECK_FALSE(same_bits(a.value(), b.value()));
  init::xavier_normal(b, other);
  CHECK_FALSE(same_bits(a.value(), b.value()));
}

TEST_CASE("weights in f64") {
  Rng rng(5);
  Parameter p(Shape{30, 40}, DType::f64);
  init::xavier_uniform(p, rng);
  CHECK(max_abs(p.value()) <= std::sqrt(6.0 / 70));
  CHECK(max_abs(p.value()) > 0.2);
}

TEST_CASE("orthogonal: orthonormal columns of a tall weight, rows of a wide one") {
  for (const Shape& shape : {Shape{1, 1}, Shape{33, 7}, Shape{7, 33}, Shape{31, 31}, Shape{3, 5, 7}, Shape{2, 2, 33}}) {
    CAPTURE(shape);
    Rng rng(3);
    Parameter p(shape, DType::f64);
    init::orthogonal(p, rng, 3);
    const std::int64_t rows = shape[0], columns = shape.numel() / rows, narrow = std::min(rows, columns);
    const bool tall = rows >= columns;
    for (std::int64_t a = 0; a < narrow; ++a)
      for (std::int64_t b = 0; b < narrow; ++b) {
        double dot = 0;
        for (std::int64_t k = 0; k < std::max(rows, columns); ++k)
          dot += tall ? p.value().at(k * columns + a) * p.value().at(k * columns + b)
                      : p.value().at(a * columns + k) * p.value().at(b * columns + k);
        CHECK(dot == doctest::Approx(a == b ? 9 : 0).epsilon(1e-12));
      }
  }
  // Uniform over the orthogonal matrices: entries of 3 by 3 ones have mean 0 and variance 1/3.
  const Moments m = moments({3, 3}, [](Parameter& p, Rng& r) { init::orthogonal(p, r); });
  CHECK(std::abs(m.mean) < 0.01);
  CHECK(m.std == doctest::Approx(std::sqrt(1.0 / 3)).epsilon(0.01));
  Rng rng(1);
  Parameter vector(Shape{3});
  CHECK_THROWS_AS(init::orthogonal(vector, rng), Error);
}

TEST_CASE("truncated_normal stays within its cut") {
  const Moments m = moments({40, 50}, [](Parameter& p, Rng& r) { init::truncated_normal(p, r, 0.5); });
  CHECK(m.largest <= 1);
  CHECK(m.largest > 0.99);
  CHECK(std::abs(m.mean) < 0.006);
  CHECK(m.std == doctest::Approx(0.5 * 0.87962566).epsilon(0.01));
  Rng rng(1);
  Parameter p(Shape{3});
  CHECK_THROWS_AS(init::truncated_normal(p, rng, 1, 0), Error);
  CHECK_THROWS_AS(init::truncated_normal(p, rng, -1), Error);
}
