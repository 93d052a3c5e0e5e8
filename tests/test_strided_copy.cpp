// strided_copy and strided_add against element-by-element loops, over every permutation and many layouts.
#include "core/kernels/strided_copy.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/kernels/reduce.h"
#include "core/kernels/strided_walk.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

// Calls f(source position, target position) for every element of the layouts.
template <class F>
void for_each_element(const StridedLayout& from, const Shape& shape, const StridedLayout& to, F f) {
  for (std::int64_t flat = 0; flat < shape.numel(); ++flat) {
    std::int64_t rest = flat, source = from.offset, target = to.offset;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      const std::int64_t i = rest % shape[axis];
      rest /= shape[axis];
      source += i * from.strides[axis];
      target += i * to.strides[axis];
    }
    f(source, target);
  }
}

template <class T>
Tensor numbered(std::int64_t count, int step) {
  Tensor t = empty({count}, dtype_of<T>);
  T* p = t.mutable_data<T>();
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>)
      p[i] = static_cast<T>(i * step + 1);
    else
      p[i] = T(static_cast<float>(i * step % 251 + 1));
  }
  return t;
}

// Copies and, for the floating types, adds; elements of the target outside the layout must stay.
template <class T>
void check_layout(const StridedLayout& from, const Shape& shape, const StridedLayout& to, std::int64_t source_count,
                  std::int64_t target_count) {
  const Tensor source = numbered<T>(source_count, 3);
  Tensor target = numbered<T>(target_count, 7), right = target.clone();
  for_each_element(from, shape, to,
                   [&](std::int64_t i, std::int64_t j) { right.mutable_data<T>()[j] = source.data<T>()[i]; });
  cpu::strided_copy(source, from, shape, to, target);
  CHECK(same_bits(target, right));
  if constexpr (std::is_floating_point_v<T>) {
    for_each_element(from, shape, to,
                     [&](std::int64_t i, std::int64_t j) { right.mutable_data<T>()[j] += source.data<T>()[i]; });
    cpu::strided_add(source, from, shape, to, target);
    CHECK(same_bits(target, right));
  }
}

// The packed transpose of a packed tensor of `shape`: target axis i is source axis order[i].
template <class T>
void check_permutation(const Shape& shape, const std::vector<int>& order) {
  std::vector<std::int64_t> extents;
  StridedLayout from, to;
  for (std::size_t i = 0; i < order.size(); ++i) {
    extents.push_back(shape[order[i]]);
    from.strides[i] = shape.strides()[order[i]];
  }
  const Shape permuted{std::span<const std::int64_t>(extents)};
  to.strides = permuted.strides();
  CAPTURE(to_text(shape));
  CAPTURE(to_text(permuted));
  check_layout<T>(from, permuted, to, shape.numel(), shape.numel());
}

void check_all_permutations(const Shape& shape) {
  std::vector<int> order(static_cast<std::size_t>(shape.rank()));
  std::iota(order.begin(), order.end(), 0);
  do {
    check_permutation<float>(shape, order);
    check_permutation<double>(shape, order);
    check_permutation<std::uint8_t>(shape, order);
    check_permutation<Half>(shape, order);
    check_permutation<std::int64_t>(shape, order);
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace

TEST_CASE("every permutation of ranks 0 to 4, every element size") {
  for (const Shape& shape :
       {Shape{}, Shape{1}, Shape{37}, Shape{5, 7}, Shape{33, 18}, Shape{16, 64}, Shape{1, 40}, Shape{3, 1, 5},
        Shape{4, 33, 17}, Shape{2, 3, 4, 5}, Shape{3, 17, 2, 19}, Shape{0, 3}, Shape{2, 0, 3}})
    check_all_permutations(shape);
}

TEST_CASE("permutations of rank 6") {
  const Shape shape{2, 3, 1, 4, 2, 17};
  for (const std::vector<int>& order : {std::vector<int>{5, 4, 3, 2, 1, 0}, {0, 2, 1, 5, 4, 3}, {4, 5, 0, 1, 2, 3}})
    check_permutation<float>(shape, order);
}

TEST_CASE("slices, steps, repeats and offsets") {
  // A middle block of rows and columns, into a block of a wider target.
  check_layout<float>({2 * 40 + 3, {40, 1}}, {5, 33}, {1 * 50 + 7, {50, 1}}, 400, 400);
  // A step of two along the last axis, and along the first.
  check_layout<float>({1, {20, 2}}, {6, 10}, {0, {10, 1}}, 120, 60);
  check_layout<double>({0, {40, 1}}, {3, 20}, {0, {20, 1}}, 120, 60);
  // Into a step of two.
  check_layout<float>({0, {10, 1}}, {6, 10}, {1, {20, 2}}, 60, 121);
  // A row, a column and one element repeated.
  check_layout<float>({3, {0, 1}}, {7, 21}, {0, {21, 1}}, 30, 147);
  check_layout<float>({3, {1, 0}}, {7, 21}, {0, {21, 1}}, 30, 147);
  check_layout<std::int32_t>({2, {0, 0}}, {7, 21}, {0, {21, 1}}, 3, 147);
  // A transposed block of a larger matrix into a block of a larger matrix.
  check_layout<float>({5, {1, 70}}, {35, 40}, {9, {64, 1}}, 70 * 41, 64 * 36);
  // A layout that runs backwards.
  check_layout<float>({29, {-1}}, {30}, {0, {1}}, 30, 30);
  check_layout<float>({0, {1}}, {30}, {29, {-1}}, 30, 30);
  check_layout<float>({0, {40, 1}}, {5, 40}, {4 * 40, {-40, 1}}, 200, 200);
  check_layout<float>({0, {40, 1}}, {5, 40}, {39, {40, -1}}, 200, 200);
  check_layout<double>({0, {40, 1}}, {5, 40}, {199, {-40, -1}}, 200, 200);
  // Backwards in the source or in the target, and transposed.
  check_layout<float>({39 * 33, {1, -33}}, {33, 40}, {0, {40, 1}}, 1320, 1320);
  check_layout<float>({0, {1, 33}}, {33, 40}, {32 * 40, {-40, 1}}, 1320, 1320);
  check_layout<float>({32, {-1, 33}}, {33, 40}, {0, {40, 1}}, 1320, 1320);
  check_layout<std::uint8_t>({39 * 33, {1, -33}}, {33, 40}, {32 * 40, {-40, 1}}, 1320, 1320);
  // Every second element, backwards, of both.
  check_layout<float>({58, {-2}}, {30}, {59, {-2}}, 60, 60);
}

TEST_CASE("F12 views offset by 1, 2 and 3 elements, odd lengths") {
  for (std::int64_t offset : {1, 2, 3})
    for (std::int64_t n : {1, 2, 15, 17, 33, 67}) {
      CAPTURE(offset);
      check_layout<float>({offset, {1}}, {n}, {4 - offset, {1}}, n + 4, n + 5);
      check_layout<float>({offset, {1, n}}, {n, 35}, {4 - offset, {35, 1}}, n * 35 + 4, n * 35 + 4);
      check_layout<double>({offset, {1, n}}, {n, 35}, {4 - offset, {35, 1}}, n * 35 + 4, n * 35 + 4);
    }
}

TEST_CASE("G03 transposed operand: column sums of A") {
  const Tensor a = tensor({.7, -1.3, 2.1, -.4, 1.9, -3.2}, {2, 3});
  Tensor transposed = empty({3, 2}), sums = empty({3, 1});
  cpu::strided_copy(a, {0, {1, 3}}, {3, 2}, {0, {2, 1}}, transposed);
  cpu::sum_forward(transposed, {3, 1}, 1, sums);
  check_close(sums, {.3, .6, -1.1}, 1e-6);
}

TEST_CASE("same bits for any number of threads, large enough to be split") {
  const Tensor x = random_normal({64, 60, 70}, DType::f32, 1);
  const Strides s = x.shape().strides();
  check_same_bits_for_any_threads([&] {
    Tensor rows = zeros({60, 64, 70}), turned = zeros({70, 64, 60}), flat = zeros({64 * 60 * 70});
    cpu::strided_copy(x, {0, {s[1], s[0], s[2]}}, rows.shape(), {0, rows.shape().strides()}, rows);
    cpu::strided_add(x, {0, {s[2], s[0], s[1]}}, turned.shape(), {0, turned.shape().strides()}, turned);
    cpu::strided_add(x, {0, {1}}, flat.shape(), {0, {1}}, flat);
    return std::vector<Tensor>{rows, turned, flat};
  });
}

TEST_CASE("dtypes must agree, and only floats add") {
  Tensor f = zeros({2}), d = zeros({2}, DType::f64), i = zeros({2}, DType::i32);
  CHECK_THROWS_AS(cpu::strided_copy(f, {0, {1}}, {2}, {0, {1}}, d), Error);
  CHECK_THROWS_AS(cpu::strided_add(f, {0, {1}}, {2}, {0, {1}}, d), Error);
  CHECK_THROWS_AS(cpu::strided_add(i, {0, {1}}, {2}, {0, {1}}, i), Error);
}
