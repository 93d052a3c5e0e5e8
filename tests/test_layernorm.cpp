// LayerNorm kernels against naive double references, numeric differentiation and rows with a large mean.
#include "core/kernels/layernorm.h"

#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

struct Output {
  Tensor y, mean, rstd;
};
Output run(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5) {
  const DType dtype = x.dtype();
  Output out{full(x.shape(), kNaN, dtype), empty({x.shape().rows()}, dtype), empty({x.shape().rows()}, dtype)};
  cpu::layernorm_forward(x, weight, bias, eps, out.y, out.mean, out.rstd);
  return out;
}
// Without scale and shift.
Tensor normalised(const Tensor& x, double eps = 1e-5) {
  const std::int64_t n = x.shape().back();
  return run(x, full({n}, 1, x.dtype()), zeros({n}, x.dtype()), eps).y;
}

struct Problem {
  Tensor x, weight, bias, dy;
  Problem(std::int64_t rows, std::int64_t width, DType dtype)
      : x(random_normal({rows, width}, dtype, 1)),
        weight(random_normal({width}, dtype, 2)),
        bias(random_normal({width}, dtype, 3)),
        dy(random_normal({rows, width}, dtype, 4)) {}
  Problem to(DType dtype) const {
    Problem p = *this;
    for (Tensor* t : {&p.x, &p.weight, &p.bias, &p.dy}) *t = t->to(dtype);
    return p;
  }
};

struct Gradients {
  Target dx, dweight, dbias;
  Gradients(const Problem& p, bool second, std::int64_t offset = 0)
      : dx(p.x.shape(), p.x.dtype(), second, offset),
        dweight(p.weight.shape(), p.x.dtype(), second, offset),
        dbias(p.bias.shape(), p.x.dtype(), second, offset) {
    const Output out = run(p.x, p.weight, p.bias);
    cpu::layernorm_backward(at_offset(p.dy, offset), at_offset(p.x, offset), at_offset(p.weight, offset), out.mean,
                            out.rstd, dx.grad(), dweight.grad(), dbias.grad());
  }
};

std::vector<double> reference(const Problem& p, double eps) {
  std::vector<double> y;
  const std::int64_t n = p.x.shape().back();
  for (std::int64_t row = 0; row < p.x.shape().rows(); ++row) {
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < n; ++i) mean += p.x.at(row * n + i) / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i) variance += std::pow(p.x.at(row * n + i) - mean, 2) / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i)
      y.push_back((p.x.at(row * n + i) - mean) / std::sqrt(variance + eps) * p.weight.at(i) + p.bias.at(i));
  }
  return y;
}

}  // namespace

TEST_CASE_TEMPLATE("forward agrees with a naive reference", T, float, double) {
  for (std::int64_t rows : kRows)
    for (std::int64_t width : kWidths) {
      const Problem p(rows, width, dtype_of<T>);
      // eps 0.1, so that rows of two nearly equal values do not magnify the rounding of x.
      check_close(run(p.x, p.weight, p.bias, 0.1).y, reference(p, 0.1), kTolerance<T>);
    }
}

TEST_CASE("backward agrees with numeric differentiation") {
  for (std::int64_t rows : {1, 3, 40})
    for (std::int64_t width : {1, 2, 3, 8, 17, 129}) {
      if (rows * width > 1000) continue;
      const Problem p(rows, width, DType::f64);
      const auto loss = [&] { return dot(run(p.x, p.weight, p.bias).y, p.dy); };
      const auto dx = numeric_gradient(p.x, loss), dweight = numeric_gradient(p.weight, loss),
                 dbias = numeric_gradient(p.bias, loss);
      for (bool second : {false, true}) {
        const Gradients g(p, second);
        g.dx.check(dx, 1e-6);
        g.dweight.check(dweight, 1e-8);
        g.dbias.check(dbias, 1e-8);
      }
    }
}

TEST_CASE("f32 backward agrees with f64, first and second write") {
  for (std::int64_t rows : {0, 1, 3, 32, 1025})  // the last: chunks of more than the least number of rows
    for (std::int64_t width : kWidths) {
      if (rows > 32 && width != 33) continue;
      // Two values closer than sqrt(eps) make 1/std large; width 2 draws such rows, so it gets a wider tolerance.
      const double tolerance = width == 2 ? 1e-3 : 1e-4;
      const Problem p(rows, width, DType::f32);
      const Gradients right(p.to(DType::f64), false);
      for (bool second : {false, true}) {
        const Gradients g(p, second);
        g.dx.check(to_doubles(right.dx.tensor()), tolerance);
        g.dweight.check(to_doubles(right.dweight.tensor()), tolerance);
        g.dbias.check(to_doubles(right.dbias.tensor()), tolerance);
      }
    }
}

TEST_CASE("each gradient alone equals the one computed with the others") {
  const Problem p(37, 33, DType::f32);
  const Output out = run(p.x, p.weight, p.bias);
  const Gradients all(p, false);
  for (int wanted = 0; wanted < 8; ++wanted) {
    Target dx(p.x.shape(), DType::f32, false), dweight(p.weight.shape(), DType::f32, false),
        dbias(p.bias.shape(), DType::f32, false);
    cpu::layernorm_backward(p.dy, p.x, p.weight, out.mean, out.rstd, wanted & 1 ? dx.grad() : Grad(),
                            wanted & 2 ? dweight.grad() : Grad(), wanted & 4 ? dbias.grad() : Grad());
    if (wanted & 1) CHECK(same_bits(dx.tensor(), all.dx.tensor()));
    if (wanted & 2) CHECK(same_bits(dweight.tensor(), all.dweight.tensor()));
    if (wanted & 4) CHECK(same_bits(dbias.tensor(), all.dbias.tensor()));
  }
}

TEST_CASE("N01 LayerNorm with a large mean") {
  check_close(normalised(tensor({40000, 40001, 40002, 40003})), {-1.3416354, -0.4472118, 0.4472118, 1.3416354}, 1e-6);

  Tensor x = empty({16});
  for (int i = 0; i < 16; ++i) x.mutable_data<float>()[i] = static_cast<float>(1000 + 0.001 * i);
  CHECK(normalised(x).at(0) == doctest::Approx(-1.3415).epsilon(1e-3));
  // The same values in double are the exact ones that f32 rounded to.
  check_close(normalised(x), to_doubles(normalised(x.to(DType::f64))), 1e-5);
}

TEST_CASE("N01 backward with a large mean") {
  for (std::int64_t width : {7, 16, 33, 129}) {
    Problem p(5, width, DType::f32);
    float* x = p.x.mutable_data<float>();
    for (std::int64_t i = 0; i < p.x.numel(); ++i) x[i] = 3000 + 0.01f * x[i];
    const Gradients g(p, false), right(p.to(DType::f64), false);
    // rstd is about 70 here, and scales dx.
    g.dx.check(to_doubles(right.dx.tensor()), 1e-4);
    g.dweight.check(to_doubles(right.dweight.tensor()), 1e-4);
  }
}

TEST_CASE_TEMPLATE("N02 LayerNorm epsilon and estimator", T, float, double) {
  check_close(normalised(tensor({1, -1}, {2}, dtype_of<T>), 1), {0.7071068, -0.7071068}, 1e-7);
  check_close(normalised(tensor({1, 0, 0, 0}, {4}, dtype_of<T>)), {1.7320046, -0.5773349, -0.5773349, -0.5773349},
              1e-7);
}

TEST_CASE_TEMPLATE("constant rows give the bias, non-finite rows NaN", T, float, double) {
  for (std::int64_t width : kWidths) {
    const Problem p(1, width, dtype_of<T>);
    check_close(run(full({1, width}, 0.1, dtype_of<T>), p.weight, p.bias).y, to_doubles(p.bias), 1e-4);
    Tensor x = p.x.clone();
    x.mutable_data<T>()[width - 1] = static_cast<T>(kNaN);
    check_close(normalised(x), std::vector<double>(static_cast<std::size_t>(width), kNaN), 0);
  }
}

TEST_CASE_TEMPLATE("F12 rows at odd offsets", T, float, double) {
  for (std::int64_t width : {1, 17, 33, 129}) {
    const Problem p(19, width, dtype_of<T>);
    const Output packed = run(p.x, p.weight, p.bias);
    const Gradients g(p, false);
    for (std::int64_t offset : {1, 2, 3}) {
      Tensor y = at_offset(zeros_like(p.x), offset), mean = at_offset(packed.mean, offset),
             rstd = at_offset(packed.rstd, offset);
      cpu::layernorm_forward(at_offset(p.x, offset), at_offset(p.weight, offset), at_offset(p.bias, offset), 1e-5, y,
                             mean, rstd);
      CHECK(same_bits(y, packed.y));
      CHECK(same_bits(mean, packed.mean));
      CHECK(same_bits(rstd, packed.rstd));
      const Gradients shifted(p, false, offset);
      CHECK(same_bits(shifted.dx.tensor(), g.dx.tensor()));
      CHECK(same_bits(shifted.dweight.tensor(), g.dweight.tensor()));
      CHECK(same_bits(shifted.dbias.tensor(), g.dbias.tensor()));
    }
  }
}

TEST_CASE("R03 same bits for any number of threads") {
  const Problem p(1031, 1037, DType::f32);
  check_same_bits_for_any_threads([&] {
    const Gradients g(p, false);
    return std::vector{run(p.x, p.weight, p.bias).y, g.dx.tensor(), g.dweight.tensor(), g.dbias.tensor()};
  });
}

TEST_CASE_TEMPLATE("N02 std_plus_eps divides by the unbiased deviation plus eps", T, float, double) {
  const auto second = [](const Tensor& x, double eps) {
    const std::int64_t n = x.shape().back();
    Tensor y = empty_like(x), mean = empty({x.shape().rows()}, x.dtype()), rstd = empty_like(mean);
    cpu::layernorm_forward(x, full({n}, 1, x.dtype()), zeros({n}, x.dtype()), eps, y, mean, rstd,
                           LayerNormForm::std_plus_eps);
    return y;
  };
  check_close(second(tensor({1, -1}, {2}, dtype_of<T>), 1), {0.4142136, -0.4142136}, 1e-7);
  check_close(second(tensor({1, 0, 0, 0}, {4}, dtype_of<T>), 1e-6), {1.499997, -0.499999, -0.499999, -0.499999}, 1e-6);
  check_close(second(full({1, 7}, 3, dtype_of<T>), 1e-6), std::vector<double>(7, 0), 0);
  check_close(second(full({1, 7}, 3, dtype_of<T>), 0), std::vector<double>(7, 0), 0);
  check_close(second(tensor({1, kNaN}, {2}, dtype_of<T>), 1), {kNaN, kNaN}, 0);
}

TEST_CASE_TEMPLATE("N02 std_plus_eps has a finite gradient where the deviation is 0", T, float, double) {
  for (std::int64_t width : {1, 2, 33}) {
    const Problem p(1, width, dtype_of<T>);
    const Tensor x = full({1, width}, 5, dtype_of<T>);
    Tensor y = empty_like(x), mean = empty({1}, x.dtype()), rstd = empty_like(mean);
    cpu::layernorm_forward(x, p.weight, p.bias, 0.5, y, mean, rstd, LayerNormForm::std_plus_eps);
    Target dx(x.shape(), x.dtype(), false);
    cpu::layernorm_backward(p.dy, x, p.weight, mean, rstd, dx.grad(), Grad(), Grad(), LayerNormForm::std_plus_eps);
    // Only the mean moves: (g - avg(g)) / eps.
    std::vector<double> right;
    double average = 0;
    for (std::int64_t i = 0; i < width; ++i) average += p.dy.at(i) * p.weight.at(i) / static_cast<double>(width);
    for (std::int64_t i = 0; i < width; ++i) right.push_back((p.dy.at(i) * p.weight.at(i) - average) / 0.5);
    dx.check(right, 1e-5);
  }
}
