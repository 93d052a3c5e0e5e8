// softmax and log_softmax against naive double references, numeric differentiation and the limits of their inputs.
#include "core/kernels/softmax.h"

#include <algorithm>

#include "autograd/ops.h"
#include "core/kernels/strided_walk.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

using Forward = void (*)(const Tensor&, const Tensor&, Tensor&);
using Backward = void (*)(const Tensor&, const Tensor&, const Tensor&, Grad, Grad);
struct Kernel {
  const char* name;
  Forward forward;
  Backward backward;
};
const Kernel kKernels[] = {{"softmax", cpu::softmax_forward, cpu::softmax_backward},
                           {"log_softmax", cpu::log_softmax_forward, cpu::log_softmax_backward}};

Tensor run(const Kernel& kernel, const Tensor& x, const Tensor& mask = {}) {
  Tensor y = full(x.shape(), kNaN, x.dtype());
  kernel.forward(x, mask, y);
  return y;
}

Tensor gradient(const Kernel& kernel, const Tensor& dy, const Tensor& y, const Tensor& mask = {}) {
  Target dx(y.shape(), y.dtype(), false);
  kernel.backward(dy, y, mask, dx.grad(), Grad());
  return dx.tensor();
}

std::vector<double> reference(const Tensor& x, bool log) {
  std::vector<double> y;
  const std::int64_t n = x.shape().back();
  for (std::int64_t row = 0; row < x.shape().rows(); ++row) {
    double max = -kInf, total = 0;
    for (std::int64_t i = 0; i < n; ++i) max = std::max(max, x.at(row * n + i));
    for (std::int64_t i = 0; i < n; ++i) total += std::exp(x.at(row * n + i) - max);
    for (std::int64_t i = 0; i < n; ++i) {
      const double shifted = x.at(row * n + i) - max;
      y.push_back(log ? shifted - std::log(total) : std::exp(shifted) / total);
    }
  }
  return y;
}

}  // namespace

TEST_CASE_TEMPLATE("forward agrees with a naive reference", T, float, double) {
  for (std::int64_t rows : kRows)
    for (std::int64_t width : kWidths) {
      const Tensor x = random_normal({rows, width}, dtype_of<T>, 1);
      check_close(run(kKernels[0], x), reference(x, false), kTolerance<T>);
      check_close(run(kKernels[1], x), reference(x, true), kTolerance<T>);
    }
}

TEST_CASE("backward agrees with numeric differentiation") {
  for (const Kernel& kernel : kKernels)
    for (std::int64_t rows : {1, 3})
      for (std::int64_t width : {1, 2, 3, 8, 17, 129}) {
        CAPTURE(kernel.name);
        const Tensor x = random_normal({rows, width}, DType::f64, 1), dy = random_normal({rows, width}, DType::f64, 2);
        const auto right = numeric_gradient(x, [&] { return dot(run(kernel, x), dy); });
        for (bool second : {false, true}) {
          Target dx(x.shape(), DType::f64, second);
          kernel.backward(dy, run(kernel, x), {}, dx.grad(), Grad());
          dx.check(right, 1e-8);
        }
      }
}

TEST_CASE("f32 backward agrees with f64, first and second write") {
  for (const Kernel& kernel : kKernels)
    for (std::int64_t rows : kRows)
      for (std::int64_t width : kWidths) {
        CAPTURE(kernel.name);
        const Tensor x = random_normal({rows, width}, DType::f32, 1), dy = random_normal({rows, width}, DType::f32, 2);
        const Tensor right = gradient(kernel, dy.to(DType::f64), run(kernel, x.to(DType::f64)));
        for (bool second : {false, true}) {
          Target dx(x.shape(), DType::f32, second);
          kernel.backward(dy, run(kernel, x), {}, dx.grad(), Grad());
          dx.check(to_doubles(right), 2e-5);
        }
      }
}

TEST_CASE_TEMPLATE("N07 softmax at infinities", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  const double e = 0.2689414213699951;
  check_close(run(kKernels[0], tensor({1000, 1001}, {2}, dtype)), {e, 1 - e}, kTolerance<T>);
  check_close(run(kKernels[0], tensor({-kInf, 0}, {2}, dtype)), {0, 1}, 0);
  check_close(run(kKernels[1], tensor({-kInf, 0}, {2}, dtype)), {-kInf, 0}, 0);
  check_close(run(kKernels[1], tensor({0, 1000}, {2}, dtype)), {-1000, 0}, 0);
  // log_softmax is x - logsumexp, so lse([-inf, 0]) = 0 and its gradient [0, 1] come out of the backward pass.
  const Tensor l = run(kKernels[1], tensor({-kInf, 0}, {2}, dtype));
  check_close(gradient(kKernels[1], tensor({1, 1}, {2}, dtype), l), {1, -1}, 0);

  for (std::int64_t width : kWidths)
    for (const Kernel& kernel : kKernels) {
      // Rows: -inf only; NaN at the end, the rest -inf; -inf but for one entry.
      Tensor x = full({3, width}, -kInf, dtype);
      x.mutable_data<T>()[2 * width - 1] = static_cast<T>(kNaN);
      x.mutable_data<T>()[3 * width - 1] = T(-5);
      const Tensor y = run(kernel, x);
      const bool log = &kernel == &kKernels[1];
      const std::size_t n = static_cast<std::size_t>(width);
      check_close(y.rows(0, 1), std::vector<double>(n, log ? -kInf : 0), 0);
      check_close(y.rows(1, 1), std::vector<double>(n, kNaN), 0);
      std::vector<double> one(n, log ? -kInf : 0);
      one.back() = log ? 0 : 1;
      check_close(y.rows(2, 1), one, 0);

      const Tensor dx = gradient(kernel, full({3, width}, 2, dtype), y);
      check_close(dx.rows(0, 1), std::vector<double>(n, 0), 0);
      check_close(dx.rows(1, 1), std::vector<double>(n, kNaN), 0);
    }
}

TEST_CASE_TEMPLATE("a mask hides as -inf does", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  for (const Kernel& kernel : kKernels)
    for (std::int64_t width : kWidths) {
      CAPTURE(kernel.name);
      // Row 1 is hidden altogether; what is hidden elsewhere holds NaN.
      const Tensor x = random_normal({3, width}, dtype, 1), dy = random_normal({3, width}, dtype, 2);
      Tensor keep = full({3, width}, 1, DType::u8), added = full({3, width}, 0.25, dtype);
      Tensor hidden = x.clone(), scores = x.clone(), dy_nan = dy.clone(), dy_zero = dy.clone();
      for (std::int64_t i = 0; i < 3 * width; ++i) {
        if (i / width != 1 && i % 3 != 1) continue;
        keep.mutable_data<std::uint8_t>()[i] = 0;
        added.mutable_data<T>()[i] = scores.mutable_data<T>()[i] = static_cast<T>(-kInf);
        hidden.mutable_data<T>()[i] = dy_nan.mutable_data<T>()[i] = static_cast<T>(kNaN);
        dy_zero.mutable_data<T>()[i] = 0;
      }
      const Tensor y = run(kernel, scores);
      CHECK(same_bits(run(kernel, hidden, keep), y));
      check_close(run(kernel, hidden, added), to_doubles(y), kTolerance<T>);
      const Tensor dx = gradient(kernel, dy_zero, y);
      CHECK(same_bits(gradient(kernel, dy_nan, y, keep), dx));
      CHECK(same_bits(gradient(kernel, dy_nan, y, added), dx));
      for (std::int64_t i = 0; i < 3 * width; ++i)
        if (keep.at(i) == 0) CHECK(dx.at(i) == 0);
    }
}

TEST_CASE("a mask broadcasts over any axis") {
  const Tensor x = random_normal({2, 3, 4}, DType::f32, 1);
  for (const Kernel& kernel : kKernels)
    for (const Shape& shape : {Shape{}, Shape{4}, Shape{3, 1}, Shape{2, 1, 1}, Shape{2, 1, 4}, Shape{2, 3, 1}}) {
      Tensor keep = full(shape, 1, DType::u8);
      for (std::int64_t i = 1; i < keep.numel(); i += 2) keep.mutable_data<std::uint8_t>()[i] = 0;
      Tensor whole = full(x.shape(), 0, DType::u8);
      const Strides strides = broadcast_strides(shape, x.shape());
      for (std::int64_t i = 0; i < 24; ++i)
        whole.mutable_data<std::uint8_t>()[i] =
            static_cast<std::uint8_t>(keep.at(i / 12 * strides[0] + i / 4 % 3 * strides[1] + i % 4 * strides[2]));
      CHECK(same_bits(run(kernel, x, keep), run(kernel, x, whole)));
    }
}

TEST_CASE("a hidden log-probability is -inf") {
  const Tensor keep = tensor({1, 0, 1, 0, 0, 0}, {2, 3}).to(DType::u8);
  const Tensor l = run(kKernels[1], tensor({0, 5, 0, 1, 2, 3}, {2, 3}, DType::f64), keep);
  check_close(l, {-std::log(2.0), -kInf, -std::log(2.0), -kInf, -kInf, -kInf}, 1e-15);
}

TEST_CASE("masks that cannot be meant are refused") {
  const Tensor x = random_normal({2, 3}, DType::f32, 1);
  for (auto f : {static_cast<Var (*)(const Var&, const Var&)>(softmax),
                 static_cast<Var (*)(const Var&, const Var&)>(log_softmax)}) {
    CHECK_THROWS_AS(f(x, zeros({2})), Error);
    CHECK_THROWS_AS(f(x, zeros({1, 2, 3})), Error);
    CHECK_THROWS_AS(f(x, zeros({2, 3}, DType::f64)), Error);
    CHECK_THROWS_AS(f(x, zeros({2, 3}, DType::i32)), Error);
    CHECK_THROWS_AS(f(x, tensor({0, 1, 1})), Error);
    CHECK_NOTHROW(f(x, zeros({3})));
  }
}

TEST_CASE("O12 a long row of equal f32 entries") {
  const Tensor y = run(kKernels[0], full({2, 4096}, 300, DType::f32));
  check_close(y, std::vector<double>(2 * 4096, 1.0 / 4096), 0);
}

TEST_CASE_TEMPLATE("F12 rows at odd offsets", T, float, double) {
  for (const Kernel& kernel : kKernels)
    for (std::int64_t width : {1, 17, 33, 129}) {
      const Tensor x = random_normal({3, width}, dtype_of<T>, 1), dy = random_normal({3, width}, dtype_of<T>, 2);
      const Tensor y = run(kernel, x), dx = gradient(kernel, dy, y);
      for (std::int64_t offset : {1, 2, 3}) {
        Tensor y_view = at_offset(zeros_like(x), offset);
        kernel.forward(at_offset(x, offset), {}, y_view);
        CHECK(same_bits(y, y_view));
        Target dx_view(x.shape(), dtype_of<T>, false, offset);
        kernel.backward(at_offset(dy, offset), y_view, {}, dx_view.grad(), Grad());
        CHECK(same_bits(dx, dx_view.tensor()));
      }
    }
}

TEST_CASE("R03 same bits for any number of threads") {
  for (const Kernel& kernel : kKernels) {
    const Tensor x = random_normal({301, 517}, DType::f32, 1), dy = random_normal({301, 517}, DType::f32, 2);
    check_same_bits_for_any_threads([&] {
      const Tensor y = run(kernel, x);
      return std::vector{y, gradient(kernel, dy, y)};
    });
  }
}

TEST_CASE("an unwanted gradient is skipped") {
  const Tensor y = run(kKernels[0], tensor({1, 2}));
  cpu::softmax_backward(y, y, {}, Grad(), Grad());
  cpu::log_softmax_backward(y, y, {}, Grad(), Grad());
}
