// argmax, argmin, sort and topk: ties, NaN, axes, sizes, bits for any thread count.
#include "core/order.h"

#include <algorithm>
#include <numeric>

#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

// Few distinct values, so that there are many ties.
Tensor coarse(const Shape& shape) {
  Tensor t = random_normal(shape, DType::f32, 5);
  float* x = t.mutable_data<float>();
  for (std::int64_t i = 0; i < t.numel(); ++i) x[i] = std::round(x[i] * 4);
  return t;
}

void check_sorted(const Sorted& s, const std::vector<double>& values, const std::vector<double>& indices) {
  CHECK(s.indices.dtype() == DType::i64);
  check_close(s.values, values, 0);
  check_close(s.indices, indices, 0);
}

}  // namespace

TEST_CASE("argmax and argmin give the first, in row-major order over the reduced axes") {
  const Tensor x = tensor({2, 5, 5, 1, 1, 3}, {2, 3});
  const Tensor rows = argmax(x, {1});
  CHECK(rows.dtype() == DType::i64);
  check_close(rows, {1, 2}, 0);
  check_close(argmax(x, {0}), {0, 0, 0}, 0);
  check_close(argmin(x, {-1}), {0, 0}, 0);
  check_close(argmin(x, {0}), {1, 1, 1}, 0);
  CHECK(argmax(x).item() == 1);
  CHECK(argmin(x).item() == 3);
  CHECK(argmax(x, {1}, true).shape() == Shape{2, 1});
  CHECK(argmax(tensor({7}, {})).item() == 0);
  check_close(argmax(tensor({7, 1, 2, 3, 7, 0, 3, 4}, {2, 2, 2}), {0, 2}), {0, 3}, 0);
  check_close(argmax(tensor({1, kNaN, 9, kNaN})), {1}, 0);
  check_close(argmin(tensor({1, kNaN, -9, kNaN})), {1}, 0);
  CHECK(argmax(zeros({0, 3}), {1}).shape() == Shape{0});
  CHECK_THROWS_AS(argmax(zeros({0, 3}), {0}), Error);
  CHECK_THROWS_AS(argmin(zeros({3}), {1}), Error);
}

TEST_CASE("sort is stable; NaN is the largest") {
  const Tensor x = tensor({3, kNaN, 1, -kInf, 3, kInf, kNaN, 1});
  check_sorted(sort(x), {-kInf, 1, 1, 3, 3, kInf, kNaN, kNaN}, {3, 2, 7, 0, 4, 5, 1, 6});
  check_sorted(sort(x, 0, true), {kNaN, kNaN, kInf, 3, 3, 1, 1, -kInf}, {1, 6, 5, 0, 4, 2, 7, 3});
  check_sorted(topk(x, 3), {kNaN, kNaN, kInf}, {1, 6, 5});
  check_sorted(topk(x, 4, -1, false), {-kInf, 1, 1, 3}, {3, 2, 7, 0});
  check_sorted(sort(tensor({0.0, -0.0, 0.0})), {0, 0, 0}, {0, 1, 2});
}

TEST_CASE("sort and topk along every axis agree with std::stable_sort") {
  for (const Shape& shape : {Shape{1}, Shape{31}, Shape{33}, Shape{1000}, Shape{33, 17}, Shape{5, 31, 7}})
    for (int axis = 0; axis < shape.rank(); ++axis)
      for (bool descending : {false, true})
        for (DType dtype : {DType::f32, DType::f64}) {
          const Tensor x = coarse(shape).to(dtype);
          const std::int64_t n = shape[axis], inner = shape.strides()[axis], k = (n + 1) / 2;
          const Sorted all = sort(x, axis, descending), best = topk(x, k, axis - shape.rank(), descending);
          REQUIRE(all.values.shape() == shape);
          REQUIRE(best.values.shape() == shape.with(axis, k));
          std::vector<std::int64_t> order(static_cast<std::size_t>(n));
          bool right = true;
          for (std::int64_t slice = 0; slice < shape.numel() / n; ++slice) {
            const std::int64_t outer = slice / inner, column = slice % inner;
            const auto value = [&](std::int64_t i) { return x.at((outer * n + i) * inner + column); };
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
              return descending ? value(a) > value(b) : value(a) < value(b);
            });
            for (std::int64_t i = 0; i < n; ++i) {
              const std::int64_t at = (outer * n + i) * inner + column, from = order[static_cast<std::size_t>(i)];
              right &= all.indices.data<std::int64_t>()[at] == from && all.values.at(at) == value(from);
              if (i >= k) continue;
              const std::int64_t among = (outer * k + i) * inner + column;
              right &= best.indices.data<std::int64_t>()[among] == from && best.values.at(among) == value(from);
            }
          }
          CAPTURE(to_text(shape));
          CAPTURE(axis);
          CHECK(right);
        }
}

TEST_CASE("sort and topk of nothing, and what does not fit") {
  CHECK(sort(zeros({0})).values.shape() == Shape{0});
  CHECK(sort(zeros({0, 3}), 0).indices.shape() == Shape{0, 3});
  CHECK(sort(zeros({0, 3}), 1).values.shape() == Shape{0, 3});
  CHECK(sort(zeros({3, 0}), 0).values.shape() == Shape{3, 0});
  CHECK(topk(zeros({2, 3}), 0).values.shape() == Shape{2, 0});
  CHECK(topk(zeros({2, 3}), 3).values.shape() == Shape{2, 3});
  CHECK_THROWS_WITH_AS(topk(zeros({2, 3}), 4), "topk: k must be in [0, 3], the extent of axis 1 of [2, 3], not 4",
                       Error);
  CHECK_THROWS_AS(topk(zeros({3}), -1), Error);
  CHECK_THROWS_AS(sort(zeros({3}), 1), Error);
  CHECK_THROWS_AS(sort(zeros({})), Error);
}

TEST_CASE("same bits for any number of threads") {
  const Tensor x = coarse({203, 301});
  check_same_bits_for_any_threads([&] {
    const Sorted rows = sort(x), columns = topk(x, 10, 0);
    return std::vector<Tensor>{rows.values, rows.indices, columns.values, columns.indices, argmax(x), argmin(x, {0})};
  });
}
