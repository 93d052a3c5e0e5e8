// gather, index_select, scatter_add, one_hot and triangles against plain loops; bad indices, order, odd addresses.
#include "core/kernels/indexing.h"

#include <string>

#include "autograd/ops.h"
#include "core/kernels/triangle.h"
#include "error_message.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

Tensor index_of(const std::vector<std::int64_t>& values, const Shape& shape, DType dtype = DType::i64) {
  return from_values(values, shape).to(dtype);
}

Tensor random_index(const Shape& shape, std::int64_t bound, DType dtype = DType::i64) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(RandomKey{7, 8}.below(i, bound));
  return index_of(values, shape, dtype);
}

// Calls f(element of the chosen, element of x) in order of the chosen.
template <class F>
void for_each_chosen(const IndexLayout& l, const Tensor& index, F f) {
  for (std::int64_t o = 0; o < l.outer; ++o)
    for (std::int64_t i = 0; i < l.m; ++i)
      for (std::int64_t c = 0; c < l.inner; ++c) {
        const std::int64_t chosen = (o * l.m + i) * l.inner + c;
        const auto j = static_cast<std::int64_t>(index.at(l.per_element ? chosen : i));
        f(chosen, (o * l.n + j) * l.inner + c);
      }
}

template <class T>
void check_layout(const IndexLayout& l, DType index_dtype) {
  const Shape whole{l.outer, l.n, l.inner}, chosen{l.outer, l.m, l.inner};
  const Tensor index = random_index(l.per_element ? chosen : Shape{l.m}, l.n, index_dtype);
  const Tensor x = random_normal(whole, dtype_of<T>, 1), y = random_normal(chosen, dtype_of<T>, 2);
  std::vector<double> gathered(static_cast<std::size_t>(y.numel())),
      scattered(static_cast<std::size_t>(x.numel()), 0.0);
  for_each_chosen(l, index, [&](std::int64_t from, std::int64_t to) {
    gathered[static_cast<std::size_t>(from)] = x.at(to);
    scattered[static_cast<std::size_t>(to)] += y.at(from);
  });
  Tensor got = full(chosen, kNaN, dtype_of<T>);
  cpu::gather_forward("gather", x, index, l, got);
  check_close(got, gathered, 0);
  for (const bool second : {false, true}) {
    Target dx(whole, dtype_of<T>, second), dsource(chosen, dtype_of<T>, second);
    cpu::gather_backward("gather", y, index, l, dx.grad());
    dx.check(scattered, kTolerance<T>);
    cpu::scatter_add_backward("scatter_add", x, index, l, dsource.grad());
    dsource.check(gathered, kTolerance<T>);
  }
  Tensor sum = x.clone();
  cpu::scatter_add_forward("scatter_add", y, index, l, sum);
  for (std::size_t i = 0; i < scattered.size(); ++i) scattered[i] += x.at(static_cast<std::int64_t>(i));
  check_close(sum, scattered, kTolerance<T>);
}

}  // namespace

TEST_CASE_TEMPLATE("every layout, both index types", T, float, double) {
  for (const DType dtype : {DType::i32, DType::i64})
    for (const bool per_element : {false, true})
      for (const auto& [outer, n, m, inner] : {std::array<std::int64_t, 4>{1, 1, 1, 1},
                                               {1, 5, 9, 1},
                                               {3, 5, 2, 1},
                                               {1, 4, 7, 33},
                                               {2, 3, 5, 17},
                                               {2, 3, 0, 4},
                                               {0, 3, 2, 4},
                                               {2, 3, 4, 0},
                                               {1, 2, 100, 129}})
        check_layout<T>({outer, n, m, inner, per_element}, dtype);
}

TEST_CASE_TEMPLATE("an index shorter than x, against a walk over its elements", T, float, double) {
  struct Row {
    Shape x;
    int axis;
    Shape index;
  };
  for (const auto& [shape, axis, chosen] :
       {Row{{3, 5}, 0, {4, 2}}, Row{{5, 3}, 1, {2, 7}}, Row{{3, 2, 4, 5}, 1, {2, 3, 3, 2}},
        Row{{2, 9, 3}, 2, {2, 4, 1}}, Row{{4, 3, 70}, 1, {3, 5, 65}}, Row{{3, 5}, 0, {4, 0}}, Row{{3, 5}, 1, {1, 0}},
        Row{{3, 5}, 1, {0, 2}}}) {
    CAPTURE(shape);
    const Tensor x = random_normal(shape, dtype_of<T>, 1), source = random_normal(chosen, dtype_of<T>, 2);
    const Tensor index = random_index(chosen, shape[axis]);
    std::vector<double> y, total = to_doubles(x), scattered(total.size(), 0.0);
    for (std::int64_t flat = 0; flat < chosen.numel(); ++flat) {
      std::int64_t at = 0, rest = flat, step = 1;
      for (int d = shape.rank() - 1; d >= 0; step *= shape[d], rest /= chosen[d], --d)
        at += (d == axis ? static_cast<std::int64_t>(index.at(flat)) : rest % chosen[d]) * step;
      y.push_back(x.at(at));
      total[static_cast<std::size_t>(at)] += source.at(flat);
      scattered[static_cast<std::size_t>(at)] += source.at(flat);
    }
    CHECK(gather(x, axis, index).shape() == chosen);
    check_close(gather(x, axis, index).value(), y, 0);
    check_close(scatter_add(x, axis, index, source).value(), total, kTolerance<T>);
    Tape tape;  // the catalogue checks second writes and threads
    const Var v = tape.watch(x), w = tape.watch(source);
    tape.backward(sum(gather(v, axis, index) * Var(source)) + sum(scatter_add(zeros_like(x), axis, index, w) * Var(x)));
    check_close(tape.grad(v), scattered, kTolerance<T>);
    check_close(tape.grad(w), y, 0);
  }
}

TEST_CASE("values of PyTorch's documentation") {
  const Var x = tensor({1, 2, 3, 4}, {2, 2});
  CHECK(gather(x, 1, index_of({0, 0, 1, 0}, {2, 2})).value().to_vector<float>() == std::vector<float>{1, 1, 4, 3});
  CHECK(index_select(x, 0, index_of({1, 1}, {2})).value().to_vector<float>() == std::vector<float>{3, 4, 3, 4});
  const Var source = tensor({1, 2, 3, 4, 5}, {1, 5});
  CHECK(scatter_add(zeros({3, 5}), 0, index_of({0, 1, 2, 0, 0}, {1, 5}), source).value().to_vector<float>() ==
        std::vector<float>{1, 0, 0, 4, 5, 0, 2, 0, 0, 0, 0, 0, 3, 0, 0});
  const Var rows = tensor({1, 2, 3, 6, 7, 8}, {2, 3});
  CHECK(scatter_add(zeros({3, 5}), 1, index_of({0, 1, 2, 0, 1, 4}, {2, 3}), rows).value().to_vector<float>() ==
        std::vector<float>{1, 2, 3, 0, 0, 6, 7, 0, 0, 8, 0, 0, 0, 0, 0});
  CHECK(one_hot(index_of({0, 2, 1}, {3}, DType::i32), 4).to_vector<float>() ==
        std::vector<float>{1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0});
  CHECK(one_hot(index_of({}, {0, 2}), 3).shape() == Shape{0, 2, 3});
  CHECK(one_hot(index_of({1}, {}), 2, DType::f64).to_vector<double>() == std::vector<double>{0, 1});
}

TEST_CASE("index_select of integers and bytes") {
  const Tensor wide = index_of({10, 20, 30}, {3}), index = index_of({2, 0}, {2});
  CHECK(index_select(wide, 0, index).value().to_vector<std::int64_t>() == std::vector<std::int64_t>{30, 10});
  CHECK(index_select(wide.to(DType::u8), 0, index).value().to_vector<std::uint8_t>() ==
        std::vector<std::uint8_t>{30, 10});
}

TEST_CASE("G10 Bad index or label") {
  const Tensor x = random_normal({5, 3}, DType::f32, 1);
  for (const DType dtype : {DType::i32, DType::i64})
    for (const std::int64_t bad : {5, -1}) {
      const std::string value = "index " + std::to_string(bad) + " at flat position 2";
      const Tensor rows = index_of({0, 4, bad}, {3}, dtype), elements = index_of({0, 4, bad}, {1, 3}, dtype);
      check_error([&] { index_select(x, 0, rows); }, {"index_select: " + value, "[0, 5)"});
      check_error([&] { gather(x, 0, elements); }, {"gather: " + value, "[0, 5)"});
      check_error([&] { scatter_add(x, 0, elements, zeros({1, 3})); }, {"scatter_add: " + value, "[0, 5)"});
      check_error([&] { one_hot(rows, 5); }, {"one_hot: " + value, "[0, 5)"});

      // Nothing is written.
      const IndexLayout select{1, 5, 3, 3, false};
      Tensor y = full({3, 3}, 7), target = x.clone(), hot = full({3, 5}, 7);
      const Tensor dy = random_normal({3, 3}, DType::f32, 2);
      CHECK_THROWS_AS(cpu::gather_forward("gather", x, rows, select, y), Error);
      CHECK_THROWS_AS(cpu::one_hot(rows, hot), Error);
      check_close(y, std::vector<double>(9, 7.0), 0);
      check_close(hot, std::vector<double>(15, 7.0), 0);
      CHECK_THROWS_AS(cpu::scatter_add_forward("scatter_add", dy, rows, select, target), Error);
      CHECK(same_bits(target, x));
      for (const bool second : {false, true}) {
        Target dx({5, 3}, DType::f32, second), dsource({3, 3}, DType::f32, second);
        const Tensor before = dx.tensor().clone(), before_source = dsource.tensor().clone();
        CHECK_THROWS_AS(cpu::gather_backward("gather", dy, rows, select, dx.grad()), Error);
        CHECK_THROWS_AS(cpu::scatter_add_backward("scatter_add", x, rows, select, dsource.grad()), Error);
        CHECK(same_bits(before, dx.tensor()));
        CHECK(same_bits(before_source, dsource.tensor()));
      }
      // And everything still works.
      CHECK(index_select(x, 0, index_of({4}, {1}, dtype)).value().at(2) == x.at(14));
    }
}

TEST_CASE("what an index must be") {
  const Var x = random_normal({2, 3}, DType::f32, 1);
  check_error([&] { gather(x, 0, zeros({2, 3})); }, {"gather: the index must be i32 or i64, not f32"});
  check_error([&] { gather(x, 0, Tensor()); }, {"gather", "an empty Tensor"});
  check_error([&] { gather(x, 1, index_of({0, 0, 0}, {3, 1})); }, {"gather", "[2, 3]", "[3, 1]"});
  check_error([&] { gather(x, 1, index_of({0, 0}, {2})); }, {"gather", "[2, 3]", "[2]", "index_select"});
  check_error([&] { gather(x, 2, index_of({0}, {1})); }, {"gather", "2"});
  check_error([&] { index_select(x, 1, index_of({0}, {1, 1})); }, {"index_select", "[1, 1]", "gather"});
  check_error([&] { scatter_add(x, 1, index_of({0, 0}, {2, 1}), zeros({2, 2})); }, {"scatter_add", "[2, 1]", "[2, 2]"});
  check_error([&] { scatter_add(x, 1, index_of({0, 0}, {2, 1}), zeros({2, 1}, DType::f64)); }, {"scatter_add", "f64"});
  check_error([&] { one_hot(zeros({2}), 3); }, {"one_hot", "f32"});
  check_error([&] { one_hot(index_of({}, {0}), -1); }, {"one_hot", "-1"});
  check_error([&] { one_hot(index_of({0}, {1, 1, 1, 1, 1, 1}), 1); }, {"one_hot", "more than 6 axes"});
  check_error([&] { tril(zeros({3})); }, {"tril", "rank 2", "[3]"});
}

TEST_CASE("R03 100000 equal indices, same bits for any number of threads") {
  for (const bool per_element : {false, true})
    for (const std::int64_t inner : {1, 40}) {
      const IndexLayout l{2, 3, 50000, inner, per_element};
      const Tensor y = random_normal({2, 50000, inner}, DType::f32, 1);
      const Tensor index = full(per_element ? y.shape() : Shape{50000}, 1, DType::i32);
      check_same_bits_for_any_threads([&] {
        Target dx({2, 3, inner}, DType::f32, false);
        cpu::gather_backward("gather", y, index, l, dx.grad());
        Tensor gathered = empty({2, 50000, inner});
        cpu::gather_forward("gather", dx.tensor(), index, l, gathered);
        return std::vector{dx.tensor(), gathered};
      });
    }
}

TEST_CASE("F12 views offset by 1, 2 and 3 elements, odd lengths") {
  for (const bool per_element : {false, true})
    for (const std::int64_t inner : {1, 17, 33}) {
      const IndexLayout l{2, 5, 3, inner, per_element};
      const Tensor x = random_normal({2, 5, inner}, DType::f32, 1), dy = random_normal({2, 3, inner}, DType::f32, 2);
      const Tensor index = random_index(per_element ? dy.shape() : Shape{3}, 5);
      Tensor y = empty_like(dy);
      cpu::gather_forward("gather", x, index, l, y);
      Target dx(x.shape(), DType::f32, false);
      cpu::gather_backward("gather", dy, index, l, dx.grad());
      for (const std::int64_t offset : {1, 2, 3}) {
        Tensor y_view = at_offset(zeros_like(y), offset);
        cpu::gather_forward("gather", at_offset(x, offset), at_offset(index, offset), l, y_view);
        CHECK(same_bits(y, y_view));
        Target dx_view(x.shape(), DType::f32, false, offset);
        cpu::gather_backward("gather", at_offset(dy, offset), at_offset(index, offset), l, dx_view.grad());
        CHECK(same_bits(dx.tensor(), dx_view.tensor()));
      }
    }
}

TEST_CASE_TEMPLATE("triangles against loops, every diagonal", T, float, double) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 5}, Shape{5, 3}, Shape{2, 33, 17}, Shape{0, 3}, Shape{2, 3, 0}})
    for (const bool lower : {false, true})
      for (const std::int64_t diagonal : {-1000, -5, -1, 0, 1, 4, 1000}) {
        const Tensor x = random_normal(shape, dtype_of<T>, 1);
        std::vector<double> right;
        for (std::int64_t i = 0; i < x.numel(); ++i) {
          const std::int64_t r = i / shape[-1] % shape[-2], c = i % shape[-1];
          right.push_back((lower ? c - r <= diagonal : c - r >= diagonal) ? x.at(i) : 0.0);
        }
        Tensor y = full(shape, kNaN, dtype_of<T>);
        cpu::triangle_forward(x, lower, diagonal, y);
        check_close(y, right, 0);
        for (const bool second : {false, true}) {
          Target dx(shape, dtype_of<T>, second);
          cpu::triangle_backward(x, lower, diagonal, dx.grad());
          dx.check(right, kTolerance<T>);
        }
      }
}

TEST_CASE("a triangle hides NaN and inf, and keeps what it keeps") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Tensor x = full({2, 3}, kNaN);
  check_close(tril(x, -1).value(), {0, 0, 0, kNaN, 0, 0}, 0);
  check_close(triu(full({2, 3}, kInf), 1).value(), {0, kInf, kInf, 0, 0, kInf}, 0);
  check_close(tril(x, -kMost).value(), std::vector<double>(6, 0.0), 0);
  check_close(triu(x, kMost).value(), std::vector<double>(6, 0.0), 0);
  check_close(tril(x, kMost).value(), std::vector<double>(6, kNaN), 0);
}
