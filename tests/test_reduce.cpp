// Sums over every set of axes against plain loops, their accuracy, and their reverse.
#include "core/kernels/reduce.h"

#include "core/kernels/strided_walk.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

// Calls f(position in x, position in the result) for every element of `shape`.
template <class F>
void for_each_element(const Shape& shape, const Shape& kept, F f) {
  const Strides strides = broadcast_strides(kept, shape);
  for (std::int64_t flat = 0; flat < shape.numel(); ++flat) {
    std::int64_t rest = flat, at = 0;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      at += rest % shape[axis] * strides[axis];
      rest /= shape[axis];
    }
    f(static_cast<std::size_t>(flat), static_cast<std::size_t>(at));
  }
}

// `shape` with the axes in the bit set `axes` reduced to 1.
Shape reduced(Shape shape, unsigned axes) {
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (axes >> axis & 1) shape = shape.with(axis, 1);
  return shape;
}

void check_sum(const Shape& shape, const Shape& kept, DType dtype) {
  CAPTURE(to_text(shape));
  CAPTURE(to_text(kept));
  // Terms of either sign cancel, so the error is measured by the expected size of the sum.
  const double terms =
      static_cast<double>(shape.numel()) / static_cast<double>(std::max<std::int64_t>(1, kept.numel()));
  const double tolerance = (dtype == DType::f32 ? 3e-7 : 1e-15) * (2 + std::sqrt(terms));
  const Tensor x = random_normal(shape, dtype, 1), dy = random_normal(kept, dtype, 2);
  const std::vector<double> values = to_doubles(x), gradient = to_doubles(dy);
  std::vector<double> sums(static_cast<std::size_t>(kept.numel())), dx(values.size());
  for_each_element(shape, kept, [&](std::size_t i, std::size_t j) {
    sums[j] += 0.5 * values[i];
    dx[i] = 0.5 * gradient[j];
  });
  Tensor y = full(kept, kNaN, dtype);
  cpu::sum_forward(x, kept, 0.5, y);
  check_close(y, sums, tolerance);
  for (bool second : {false, true}) {
    Target to_x(shape, dtype, second);
    cpu::sum_backward(dy, kept, 0.5, to_x.grad());
    to_x.check(dx, tolerance);
  }
}

}  // namespace

TEST_CASE("every set of axes of many shapes") {
  for (const Shape& shape :
       {Shape{}, Shape{1}, Shape{5}, Shape{16}, Shape{257}, Shape{7, 33}, Shape{129, 65}, Shape{3, 1, 70},
        Shape{5, 6, 7}, Shape{2, 3, 130, 2}, Shape{2, 3, 2, 3, 2, 17}, Shape{300, 2, 3}, Shape{2, 70, 70}})
    for (unsigned axes = 0; axes < 1u << shape.rank(); ++axes)
      for (DType dtype : {DType::f32, DType::f64}) check_sum(shape, reduced(shape, axes), dtype);
}

TEST_CASE("sum_into aligns at the last axis and adds where asked") {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}, {2, 3});
  float target[3] = {10, 20, 30};
  cpu::sum_into(x.data<float>(), x.shape(), Shape{3}, 2.0, target, true);
  CHECK(target[0] == 20);
  CHECK(target[2] == 48);
  cpu::sum_into(x.data<float>(), x.shape(), Shape{}, 1.0, target, false);
  CHECK(target[0] == 21);
}

TEST_CASE("the sum over nothing is 0") {
  for (const auto& [shape, kept] : std::vector<std::pair<Shape, Shape>>{
           {{0}, {1}}, {{0, 3}, {1, 3}}, {{3, 0}, {3, 1}}, {{2, 0, 3}, {2, 1, 3}}, {{0, 3}, {0, 1}}}) {
    Tensor y = full(kept, kNaN);
    cpu::sum_forward(zeros(shape), kept, 1, y);
    check_close(y, std::vector<double>(static_cast<std::size_t>(kept.numel())), 0);
    Target dx(shape, DType::f32, false);
    cpu::sum_backward(zeros(kept), kept, 1, dx.grad());
    dx.check({}, 0);
  }
}

TEST_CASE("O12 f32 sums keep their accuracy over a million elements") {
  constexpr std::int64_t kMillion = 1000000;
  Tensor y = empty({1});
  cpu::sum_forward(full({4096}, 1), {1}, 1, y);
  CHECK(y.at(0) == 4096);
  cpu::sum_forward(full({kMillion}, 1), {1}, 1, y);
  CHECK(y.at(0) == kMillion);
  cpu::sum_forward(full({4}, 32768), {1}, 0.25, y);
  CHECK(y.at(0) == 32768);
  cpu::sum_forward(tensor({32000, 32000, 32000, 32000, -32000, -32000, -32000, -32000}), {1}, 1, y);
  CHECK(y.at(0) == 0);

  Tensor x = empty({kMillion});
  fill_normal(x, 1, 1, RandomKey{1, 1});
  const double tenth = double{0.1f} * kMillion;
  double right = 0;
  for (std::int64_t i = 0; i < kMillion; ++i) right += x.data<float>()[i];
  cpu::sum_forward(x, {1}, 1, y);
  CHECK(y.at(0) == doctest::Approx(right).epsilon(3e-7));
  cpu::sum_forward(full({kMillion}, 0.1), {1}, 1, y);
  CHECK(y.at(0) == doctest::Approx(tenth).epsilon(3e-7));
  // The same as columns and as the outer of two reduced axes.
  Tensor columns = empty({1, 4});
  cpu::sum_forward(full({kMillion, 4}, 0.1), {1, 4}, 1, columns);
  for (std::int64_t i = 0; i < 4; ++i) CHECK(columns.at(i) == doctest::Approx(tenth).epsilon(3e-7));
  Tensor middle = empty({1, 2, 1});
  cpu::sum_forward(full({kMillion / 4, 2, 4}, 0.1), {1, 2, 1}, 1, middle);
  CHECK(middle.at(1) == doctest::Approx(tenth).epsilon(3e-7));
}

TEST_CASE("NaN and infinity come through a sum") {
  for (std::int64_t at : {0, 5, 70, 4999}) {
    Tensor x = zeros({5000}), y = empty({1});
    x.mutable_data<float>()[at] = std::numeric_limits<float>::infinity();
    cpu::sum_forward(x, {1}, 1, y);
    CHECK(y.at(0) == kInf);
    x.mutable_data<float>()[at] = std::numeric_limits<float>::quiet_NaN();
    cpu::sum_forward(x, {1}, 1, y);
    CHECK(std::isnan(y.at(0)));
  }
}

TEST_CASE("F12 sums of views offset by 1, 2 and 3 elements equal the packed sum bit for bit") {
  for (std::int64_t n : {1, 17, 63, 1001})
    for (std::int64_t offset : {1, 2, 3})
      for (unsigned axes : {1u, 2u, 3u}) {
        const Tensor x = random_normal({n, 37}, DType::f32, 1);
        const Shape kept = reduced(x.shape(), axes);
        Tensor packed = empty(kept), view = at_offset(empty(kept), 4 - offset);
        cpu::sum_forward(x, kept, 1, packed);
        cpu::sum_forward(at_offset(x, offset), kept, 1, view);
        CHECK(same_bits(packed, view));
      }
}

TEST_CASE("same bits for any number of threads") {
  for (const Shape& shape : {Shape{300003}, Shape{3001, 130}, Shape{5, 40001}, Shape{50, 41, 67}}) {
    const Tensor x = random_normal(shape, DType::f32, 1);
    for (unsigned axes = 1; axes < 1u << shape.rank(); ++axes) {
      const Shape kept = reduced(shape, axes);
      check_same_bits_for_any_threads([&] {
        Tensor y = empty(kept);
        cpu::sum_forward(x, kept, 1.0 / 3, y);
        Target dx(shape, DType::f32, false);
        cpu::sum_backward(y, kept, 0.5, dx.grad());
        return std::vector<Tensor>{y, dx.tensor()};
      });
    }
  }
}
