// Dropout kernels: the mask is the one RandomKey defines, at both limits of p and for any size.
#include "core/kernels/dropout.h"

#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

constexpr RandomKey kKey{42, (std::uint64_t{3} << 32) | 5};

Tensor run(const Tensor& x, double p, RandomKey key = kKey) {
  Tensor y = full(x.shape(), kNaN, x.dtype());
  cpu::dropout_forward(x, p, key, y);
  return y;
}

std::vector<double> reference(const Tensor& x, double p) {
  std::vector<double> y;
  for (std::int64_t i = 0; i < x.numel(); ++i) y.push_back(kKey.uniform(i) >= p ? x.at(i) / (1 - p) : 0);
  return y;
}

}  // namespace

TEST_CASE_TEMPLATE("the mask is key.uniform(i) >= p, forward and backward", T, float, double) {
  for (std::int64_t rows : kRows)
    for (std::int64_t width : kWidths)
      for (double p : {1e-9, 0.1, 0.5, 0.999}) {
        const Tensor x = random_normal({rows, width}, dtype_of<T>, 1);
        const std::vector<double> right = reference(x, p);
        check_close(run(x, p), right, kTolerance<T>);
        for (bool second : {false, true}) {
          Target dx(x.shape(), dtype_of<T>, second);
          cpu::dropout_backward(x, p, kKey, dx.grad());
          dx.check(right, kTolerance<T>);
        }
      }
}

TEST_CASE_TEMPLATE("G15 Dropout limits", T, float, double) {
  Tensor x = random_normal({1001}, dtype_of<T>, 1);
  x.mutable_data<T>()[0] = static_cast<T>(kNaN);
  x.mutable_data<T>()[1] = static_cast<T>(kInf);
  x.mutable_data<T>()[2] = T(-0.0);
  CHECK(same_bits(run(x, 0), x));
  check_close(run(x, 1), std::vector<double>(1001, 0.0), 0);
  for (bool second : {false, true}) {
    Target zero(x.shape(), dtype_of<T>, second), all(x.shape(), dtype_of<T>, second);
    cpu::dropout_backward(x, 1, kKey, zero.grad());
    zero.check(std::vector<double>(1001, 0.0), 0);
    cpu::dropout_backward(x, 0, kKey, all.grad());
    all.check(to_doubles(x), kTolerance<T>);
  }

  // Four masks of 10^6 elements, so three standard deviations are half of what they are for one.
  const Tensor ones = full({1000000}, 1, dtype_of<T>);
  double dropped = 0, total = 0;
  for (std::uint64_t stream = 0; stream < 4; ++stream) {
    const Tensor y = run(ones, 0.1, RandomKey{kKey.seed, stream});
    const T* values = y.data<T>();
    for (std::int64_t i = 0; i < y.numel(); ++i) {
      dropped += values[i] == 0;
      total += static_cast<double>(values[i]);
    }
  }
  CHECK(std::abs(dropped / 4e6 - 0.1) < 0.00045);
  CHECK(std::abs(total / 4e6 - 1) < 0.0005);

  for (double p : {-0.1, 1.1, kNaN}) CHECK_THROWS_AS(run(x, p), Error);
}

TEST_CASE("an element whose number equals p is kept") {
  for (std::int64_t i : {0, 7, 500}) {
    const double p = kKey.uniform(i);
    CHECK(run(full({501}, 1), p).at(i) > 0);
    CHECK(run(full({501}, 1), std::nextafter(p, 1)).at(i) == 0);
  }
}

TEST_CASE("keys with other seeds or streams give other masks") {
  const Tensor x = full({256}, 1);
  const Tensor y = run(x, 0.5);
  CHECK(same_bits(y, run(x, 0.5)));
  for (RandomKey key : {RandomKey{43, kKey.stream}, RandomKey{kKey.seed | (std::uint64_t{1} << 32), kKey.stream},
                        RandomKey{kKey.seed, kKey.stream + 1}, RandomKey{kKey.seed, 5}})
    CHECK(!same_bits(y, run(x, 0.5, key)));
}

TEST_CASE("F12 values at odd offsets") {
  const Tensor x = random_normal({517}, DType::f32, 1), y = run(x, 0.3);
  for (std::int64_t offset : {1, 2, 3}) {
    Tensor y_view = at_offset(zeros_like(x), offset);
    cpu::dropout_forward(at_offset(x, offset), 0.3, kKey, y_view);
    CHECK(same_bits(y, y_view));
  }
}

TEST_CASE("R03 same bits for any number of threads") {
  const Tensor x = random_normal({300001}, DType::f32, 1);
  check_same_bits_for_any_threads([&] {
    Target dx(x.shape(), DType::f32, true);
    cpu::dropout_backward(x, 0.2, kKey, dx.grad());
    return std::vector{run(x, 0.2), dx.tensor()};
  });
}
