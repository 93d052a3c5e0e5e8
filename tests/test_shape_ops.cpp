// Values, errors and empty shapes of the ops that move elements, matmul with vectors, and the sweep over layouts.
#include <algorithm>
#include <string>

#include "autograd/ops.h"
#include "error_message.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

using Values = std::vector<float>;

Tensor counting(const Shape& shape, DType dtype = DType::f32) {
  Tensor t = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.mutable_data<double>()[i] = static_cast<double>(i);
  return t.to(dtype);
}

void check_values(const Var& y, const Shape& shape, const Values& values) {
  CHECK(y.shape() == shape);
  CHECK(y.value().to_vector<float>() == values);
}

using Op = std::function<Var(const Var&)>;

// What backward gives for a random cotangent, and the value.
std::pair<Tensor, Tensor> value_and_gradient(const Tensor& x, const Op& f) {
  Tape tape;
  const Var watched = tape.watch(x), y = f(watched);
  tape.backward(y, random_normal(y.shape(), y.dtype(), 5));
  return {y.value(), tape.grad(watched)};
}

// f after the layout equals f on a packed copy of what the layout chooses, forward and backward, in every bit.
void check_layout(const std::string& name, const Op& layout, const Op& f) {
  CAPTURE(name);
  const Tensor x = random_normal({3, 4, 6, 5}, DType::f32, 1);
  const Tensor places = layout(counting(x.shape())).value();
  Tensor copy = empty(places.shape());
  for (std::int64_t i = 0; i < copy.numel(); ++i)
    copy.mutable_data<float>()[i] = x.data<float>()[static_cast<std::int64_t>(places.at(i))];
  const auto [y, dx] = value_and_gradient(x, [&](const Var& v) { return f(layout(v)); });
  const auto [right_y, dcopy] = value_and_gradient(copy, f);
  CHECK(same_bits(y, right_y));
  Tensor right_dx = zeros(x.shape());
  for (std::int64_t i = 0; i < copy.numel(); ++i)
    right_dx.mutable_data<float>()[static_cast<std::int64_t>(places.at(i))] = dcopy.data<float>()[i];
  check_close(dx, to_doubles(right_dx), 0);
}

}  // namespace

TEST_CASE("G03 Transposed or strided operands") {
  const Tensor a = tensor({.7, -1.3, 2.1, -.4, 1.9, -3.2}, {2, 3});
  check_close(matmul(transpose(a), full({2, 2}, 1)).value(), {.3, .3, .6, .6, -1.1, -1.1}, 1e-6);

  const std::pair<std::string, Op> layouts[] = {
      {"contiguous",
       [](const Var& x) {
         return reshape(x, {12, 30});
       }},
      {"transposed", [](const Var& x) { return transpose(x); }},
      {"step-2 slice", [](const Var& x) { return slice(x, -1, 0, 5, 2); }},
      {"backward slice", [](const Var& x) { return slice(x, 2, 4, -1, -2); }},
      {"offset",
       [](const Var& x) {
         return slice(reshape(x, {-1, 5}), 0, 1, 60);
       }},
      {"flipped",
       [](const Var& x) {
         return flip(x, {0, 3});
       }},
      {"permuted 4-D",
       [](const Var& x) {
         return permute(x, {2, 0, 3, 1});
       }},
  };
  const Tensor index = from_values<std::int64_t>({1, 0, 2, 1}, {4});
  const std::pair<std::string, Op> ops[] = {
      {"slice", [](const Var& x) { return slice(x, 0, 0, 3, 2); }},
      {"flip", [](const Var& x) { return flip(x, {-1}); }},
      {"permute", [](const Var& x) { return transpose(x, 0, 1); }},
      {"expand", [](const Var& x) { return expand(slice(x, 0, 0, 1), x.shape()); }},
      {"pad", [](const Var& x) { return pad(x, 1, 1, 2, 3); }},
      {"repeat_interleave", [](const Var& x) { return repeat_interleave(x, 2, 1); }},
      {"concat",
       [](const Var& x) {
         return concat({slice(x, 0, 1, 3), x}, 0);
       }},
      {"stack",
       [](const Var& x) {
         return stack({x, square(x)}, 1);
       }},
      {"split", [](const Var& x) { return split(x, 0, 1)[1]; }},
      {"tril", [](const Var& x) { return tril(x, 1); }},
      {"index_select", [&](const Var& x) { return index_select(x, 0, index); }},
      {"gather", [](const Var& x) { return gather(x, 0, full(x.shape(), 1, DType::i64)); }},
      {"scatter_add", [](const Var& x) { return scatter_add(x, 0, full(x.shape(), 1, DType::i64), x); }},
      {"matmul", [](const Var& x) { return matmul(x, x, false, true); }},
      {"softmax", [](const Var& x) { return softmax(x); }},
      {"sum", [](const Var& x) { return sum(x, {0}); }},
      {"mul", [](const Var& x) { return x * x; }},
  };
  for (const auto& [layout_name, layout] : layouts)
    for (const auto& [op_name, op] : ops) check_layout(op_name + ", " + layout_name, layout, op);
}

TEST_CASE("slice with a step") {
  const Var x = counting({2, 5});
  check_values(slice(x, 1, 0, 5, 2), {2, 3}, {0, 2, 4, 5, 7, 9});
  check_values(slice(x, 1, 1, 5, 3), {2, 2}, {1, 4, 6, 9});
  check_values(slice(x, 1, 4, -1, -1), {2, 5}, {4, 3, 2, 1, 0, 9, 8, 7, 6, 5});
  check_values(slice(x, 1, 3, 0, -2), {2, 2}, {3, 1, 8, 6});
  check_values(slice(x, 0, 1, -1, -1), {2, 5}, {5, 6, 7, 8, 9, 0, 1, 2, 3, 4});
  check_values(slice(x, 0, 1, 1, -1), {0, 5}, {});
  check_values(slice(counting({0}), 0, -1, -1, -1), {0}, {});
  check_values(slice(x, 0, 0, 2, 1000), {1, 5}, {0, 1, 2, 3, 4});
  CHECK(slice(counting({4}, DType::i32), 0, 3, -1, -3).value().to_vector<std::int32_t>() ==
        std::vector<std::int32_t>{3, 0});
  check_error([&] { slice(x, 1, 0, 5, 0); }, {"slice: the step must not be 0"});
  check_error([&] { slice(x, 1, 0, 6); }, {"slice: from 0 to 6 in steps of 1", "[2, 5]"});
  check_error([&] { slice(x, 1, 3, 2); }, {"slice: from 3 to 2"});
  check_error([&] { slice(x, 1, 5, 0, -1); }, {"slice: from 5 to 0 in steps of -1", "last element"});
  check_error([&] { slice(x, 1, 0, 5, -1); }, {"slice"});
  check_error([&] { slice(x, 1, 3, -2, -1); }, {"slice"});
}

TEST_CASE("flip, expand, pad and repeat_interleave") {
  const Var x = counting({2, 3});
  check_values(flip(x, {0}), {2, 3}, {3, 4, 5, 0, 1, 2});
  check_values(flip(x, {0, -1}), {2, 3}, {5, 4, 3, 2, 1, 0});
  check_values(flip(counting({0, 3}), {0}), {0, 3}, {});
  check_error([&] { flip(x, {1, -1}); }, {"flip: axis -1 is named twice"});
  check_values(expand(counting({2, 1}), {2, 2, 3}), {2, 2, 3}, {0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1});
  check_values(expand(counting({1}), {0}), {0}, {});
  check_error([&] { expand(x, {2, 4}); }, {"expand: [2, 3] does not broadcast to [2, 4]"});
  check_error([&] { expand(x, {3}); }, {"expand"});
  check_error([&] { expand(counting({0}), {2}); }, {"expand"});
  check_values(pad(x, 1, 1, 2, -1), {2, 6}, {-1, 0, 1, 2, -1, -1, -1, 3, 4, 5, -1, -1});
  check_values(pad(counting({0}), 0, 1, 1, 2), {2}, {2, 2});
  check_error([&] { pad(x, 1, -1, 0); }, {"pad", "-1", "slice"});
  check_values(repeat_interleave(x, 2, 1), {2, 6}, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5});
  check_values(repeat_interleave(x, 2, 0), {4, 3}, {0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5});
  check_values(repeat_interleave(x, 0, 0), {0, 3}, {});
  check_error([&] { repeat_interleave(x, -1, 0); }, {"repeat_interleave", "-1"});
}

TEST_CASE("stack, split and chunk") {
  const Var x = counting({2, 2}), y = counting({2, 2}) + 4;
  check_values(stack({x, y}, 0), {2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  check_values(stack({x, y}, 1), {2, 2, 2}, {0, 1, 4, 5, 2, 3, 6, 7});
  check_values(stack({x, y}, -1), {2, 2, 2}, {0, 4, 1, 5, 2, 6, 3, 7});
  check_error([&] { stack({x, y}, 3); }, {"stack", "[-3, 2]", "not 3"});
  check_error([&] { stack({x, Var(counting({2, 3}))}, 0); }, {"stack", "[2, 2]", "[2, 3]", "concat"});
  check_error([&] { stack(std::span<const Var>(), 0); }, {"stack: needs at least one part"});
  check_error([&] { stack({Var(zeros({1, 1, 1, 1, 1, 1}))}, 0); }, {"stack", "more than 6 axes"});

  const Var z = counting({2, 5});
  const auto [a, b, c] = split(z, 1, {2, 0, 3});
  check_values(a, {2, 2}, {0, 1, 5, 6});
  check_values(b, {2, 0}, {});
  check_values(c, {2, 3}, {2, 3, 4, 7, 8, 9});
  check_error([&] { split(z, 1, {2, 2}); }, {"split", "4 elements together", "has 5"});
  check_error([&] { split(z, 1, {6, -1}); }, {"split", "-1"});
  check_error([&] { split(z, 1, 6); }, {"split: 6", "[2, 5]"});
  const auto rows = chunk<2>(z, 0);
  check_values(rows[1], {1, 5}, {5, 6, 7, 8, 9});
  check_error([&] { chunk<2>(z, 1); }, {"chunk", "[2, 5]", "2 equal parts", "split"});

  // More parts than fit anywhere by chance, and only some of them used.
  Tape tape;
  const Var x40 = tape.watch(counting({40}));
  const auto parts = chunk<40>(x40, 0);
  tape.backward(sum(concat({parts[3], parts[39], parts[3]}, 0)));
  Tensor right = zeros({40});
  right.mutable_data<float>()[3] = 2;
  right.mutable_data<float>()[39] = 1;
  CHECK(same_bits(tape.grad(x40), right));
}

TEST_CASE("matmul with vectors, as in NumPy") {
  const Var m = tensor({1, 2, 3, 4, 5, 6}, {2, 3}), v = tensor({1, 0, -1}), u = tensor({2, 1});
  check_values(matmul(m, v), {2}, {-2, -2});
  check_values(matmul(u, m), {3}, {6, 9, 12});
  check_values(matmul(v, v), {}, {2});
  check_values(matmul(m, u, true), {3}, {6, 9, 12});
  check_values(matmul(v, m, false, true), {2}, {-2, -2});
  CHECK(matmul(v, counting({4, 2, 3, 5})).shape() == Shape{4, 2, 5});
  CHECK(matmul(counting({4, 2, 5, 3}), v).shape() == Shape{4, 2, 5});
  check_values(matmul(zeros({0}), zeros({0})), {}, {0});
  check_values(matmul(zeros({2, 0}), zeros({0})), {2}, {0, 0});
  check_error([&] { matmul(v, v, true); }, {"matmul: a vector cannot be transposed", "[3]"});
  check_error([&] { matmul(v, u); }, {"matmul: the inner extents must be equal", "3 and 2"});
  check_error([&] { matmul(m, u); }, {"matmul", "3 and 2"});
  check_error([&] { matmul(scalar(1), v); }, {"matmul", "rank 1 or more", "mul"});
}
