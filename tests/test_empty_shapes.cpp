// Functions of ops.h that work element by element, reduce, or move elements, on tensors without elements and on inputs
// of rank 0 and 1: shapes, values, gradients, and what throws.
#include <array>

#include "core/kernels/compare.h"
#include "core/order.h"
#include "tests/empty_shapes.h"

using namespace tapestry;
using namespace tapestry::testing;

TEST_CASE("pointwise, one input") {
  const std::vector<std::pair<const char*, Var (*)(const Var&)>> functions{
      {"neg", neg},
      {"exp", exp},
      {"log", log},
      {"sqrt", sqrt},
      {"square", square},
      {"tanh", tanh},
      {"sigmoid", sigmoid},
      {"relu", relu},
      {"silu", silu},
      {"gelu", gelu},
      {"gelu_tanh", gelu_tanh},
      {"abs", abs},
      {"sign", sign},
      {"expm1", expm1},
      {"log1p", log1p},
      {"rsqrt", rsqrt},
      {"sin", sin},
      {"cos", cos},
      {"erf", erf},
      {"clamp", [](const Var& x) { return clamp(x, -1, 5); }},
      {"leaky_relu", [](const Var& x) { return leaky_relu(x); }},
      {"elu", [](const Var& x) { return elu(x); }},
      {"softplus", [](const Var& x) { return softplus(x); }},
      {"pow", [](const Var& x) { return pow(x, 1.5); }},
      {"scale", [](const Var& x) { return scale(x, 2); }},
      {"add_scalar", [](const Var& x) { return add_scalar(x, 2); }},
      {"affine", [](const Var& x) { return affine(x, 2, 1); }},
      {"reciprocal", [](const Var& x) { return reciprocal(x); }},
      {"dropout",
       [](const Var& x) {
         return dropout(x, 0.0, RandomKey{1, 2});
       }},
  };
  for (const auto& [name, function] : functions) {
    const Function f = [function](Inputs v) { return function(v[0]); };
    for (const Shape& s : kEmpty) check(name, {none(s)}, s, f);
    const double value = f(std::vector<Var>{full({1}, 2, DType::f64)}).value().item();
    for (const Shape& s : kLow) check(name, {full(s, 2, DType::f64)}, s, value, f);
  }
}

TEST_CASE("pointwise, two inputs, broadcast") {
  const std::vector<std::pair<const char*, Var (*)(const Var&, const Var&)>> functions{
      {"add", add},         {"sub", sub},
      {"mul", mul},         {"div", div},
      {"pow", pow},         {"minimum", minimum},
      {"maximum", maximum}, {"where", [](const Var& a, const Var& b) {
         return where(mask_of({}), a, b); }}};
  struct Shapes {
    Shape a, b, y;
  };
  const std::vector<Shapes> table{{{0}, {0}, {0}},
                                  {{0}, {1}, {0}},
                                  {{0}, {}, {0}},
                                  {{0, 3}, {3}, {0, 3}},
                                  {{3, 0}, {}, {3, 0}},
                                  {{3, 0}, {3, 1}, {3, 0}},
                                  {{3, 1}, {0}, {3, 0}},
                                  {{2, 0, 3}, {3}, {2, 0, 3}},
                                  {{2, 0, 3}, {2, 1, 1}, {2, 0, 3}},
                                  {{}, {}, {}},
                                  {{3}, {}, {3}},
                                  {{1}, {3}, {3}}};
  for (const auto& [name, function] : functions)
    for (const auto& [a, b, y] : table) {
      const Tensor left = full(a, 3, DType::f64), right = full(b, 2, DType::f64), l = full({}, 3, DType::f64),
                   r = full({}, 2, DType::f64);
      const Function f = [function = function](Inputs v) { return function(v[0], v[1]); };
      check(name, {left, right}, y, function(l, r).value().item(), f);
      check(name, {right, left}, y, function(r, l).value().item(), f);
    }
  check_throws("add", [] { add(none({0}), none({3})); });
  CHECK(lt(none({0, 3}), none({3})).shape() == Shape{0, 3});
  check("masked_fill", {none({2, 0})}, {2, 0}, [](Inputs v) { return masked_fill(v[0], mask_of({1, 1}), 7); });
  check("masked_fill", {none({})}, {}, 7, [](Inputs v) { return masked_fill(v[0], mask_of({}), 7); });
}

TEST_CASE("reductions over nothing: sum 0, prod 1, norm 0, logsumexp -inf; the others throw") {
  using Reduction = Var (*)(const Var&, Axes, bool);
  struct Row {
    const char* name;
    Reduction f;
    double over_nothing;  // NaN: throws
    double of_a_scalar;   // of 3; NaN: throws
  };
  const std::vector<Row> rows{{"sum", sum, 0, 3},
                              {"prod", prod, 1, 3},
                              {"norm", norm, 0, 3},
                              {"mean", mean, kNaN, 3},
                              {"logsumexp", logsumexp, -kInf, 3},
                              {"max", max, kNaN, 3},
                              {"min", min, kNaN, 3},
                              {"var", [](const Var& x, Axes a, bool k) { return var(x, a, k); }, kNaN, kNaN},
                              {"stddev", [](const Var& x, Axes a, bool k) { return stddev(x, a, k); }, kNaN, kNaN},
                              {"var", [](const Var& x, Axes a, bool k) { return var(x, a, k, 0); }, kNaN, 0},
                              {"stddev", [](const Var& x, Axes a, bool k) { return stddev(x, a, k, 0); }, kNaN, 0}};
  for (const Row& row : rows)
    for (const Shape& s : kEmpty) {
      for (const bool keepdim : {false, true}) {
        const auto expect = [&](Axes axes) {
          const Shape result = reduce_shape("test", s, axes, keepdim).result;
          const Function f = [&](Inputs v) { return row.f(v[0], axes, keepdim); };
          if (result.numel() > 0 && std::isnan(row.over_nothing))
            check_throws(row.name, [&] { row.f(none(s), axes, keepdim); });
          else
            check(row.name, {none(s)}, result, row.over_nothing, f);
        };
        expect({});
        for (int axis = 0; axis < s.rank(); ++axis) expect({axis});
        if (s.rank() > 1) expect({0, 1});
      }
    }
  for (const Row& row : rows)
    for (const Shape& s : {Shape{}, Shape{1}}) {
      const Tensor x = full(s, 3, DType::f64);
      for (const bool keepdim : {false, true}) {
        const Function f = [&](Inputs v) { return row.f(v[0], {}, keepdim); };
        if (std::isnan(row.of_a_scalar))
          check_throws(row.name, [&] { row.f(x, {}, keepdim); });
        else
          check(row.name, {x}, keepdim ? s : Shape{}, row.of_a_scalar, f);
      }
    }
  for (const Shape& s : kEmpty)
    for (int axis = 0; axis < s.rank(); ++axis)
      check("cumsum", {none(s)}, s, [=](Inputs v) { return cumsum(v[0], axis); });
  check_throws("cumsum", [] { cumsum(none({}), 0); });
  check_throws("sum", [] { sum(none({}), {0}); });
}

TEST_CASE("argmax, argmin, sort and topk") {
  for (const Shape& s : kEmpty) {
    check_throws("argmax", [&] { argmax(none(s)); });
    check_throws("argmin", [&] { argmin(none(s)); });
    for (int axis = 0; axis < s.rank(); ++axis) {
      CHECK(sort(none(s), axis).values.shape() == s);
      CHECK(topk(none(s), 0, axis).indices.shape() == s.with(axis, 0));
    }
  }
  CHECK(argmax(none({3, 0}), {0}).shape() == Shape{0});
  CHECK(argmax(none({})).item() == 0);
  CHECK(topk(none({1}), 1).indices.item() == 0);
}

TEST_CASE("shape: views, order, and copies of ranges") {
  const auto reshaped = [](std::initializer_list<std::int64_t> to) {
    return [to = std::vector(to)](Inputs v) { return reshape(v[0], Shape(std::span<const std::int64_t>(to))); };
  };
  check("reshape", {none({0})}, {0, 5}, reshaped({0, 5}));
  check("reshape", {none({2, 0, 3})}, {0}, reshaped({0}));
  check("reshape", {none({})}, {1, 1}, reshaped({1, 1}));
  check("reshape", {none({1})}, {}, reshaped({}));
  CHECK(reshape(none({3, 0}), {-1}).shape() == Shape{0});
  CHECK(reshape(none({3, 0}), {-1, 2}).shape() == Shape{0, 2});
  CHECK(reshape(none({}), {-1}).shape() == Shape{1});
  check_throws("reshape", [] { reshape(none({0}), {-1, 0}); });
  check_throws("reshape", [] { reshape(none({0}), {1}); });
  check("transpose", {none({3, 0})}, {0, 3}, [](Inputs v) { return transpose(v[0]); });
  check("permute", {none({2, 0, 3})}, {3, 2, 0}, [](Inputs v) { return permute(v[0], {2, 0, 1}); });
  check("permute", {none({})}, {}, [](Inputs v) { return permute(v[0], {}); });
  check("permute", {none({3})}, {3}, [](Inputs v) { return permute(v[0], {0}); });
  check_throws("transpose", [] { transpose(none({3})); });
  check("slice", {none({0, 3})}, {0, 3}, [](Inputs v) { return slice(v[0], 0, 0, 0); });
  check("slice", {none({0, 3})}, {0, 2}, [](Inputs v) { return slice(v[0], 1, 1, 3); });
  check("slice", {none({3})}, {0}, [](Inputs v) { return slice(v[0], 0, 2, 2); });
  check("slice", {none({3, 2})}, {0, 2}, [](Inputs v) { return slice(v[0], 0, 3, 3, 2); });
  check("slice", {none({0})}, {0}, [](Inputs v) { return slice(v[0], 0, -1, -1, -1); });
  check_throws("slice", [] { slice(none({}), 0, 0, 1); });
  for (const Shape& s : both())
    check("flip", {none(s)}, s, [](Inputs v) { return v[0].shape().rank() ? flip(v[0], {0}) : flip(v[0], {}); });
  check("flip", {none({2, 0, 3})}, {2, 0, 3}, [](Inputs v) { return flip(v[0], {0, 1, 2}); });
}

TEST_CASE("shape: expand, pad, repeats") {
  const auto expanded = [](const Shape& to) { return [to](Inputs v) { return expand(v[0], to); }; };
  check("expand", {none({1})}, {0}, expanded({0}));
  check("expand", {none({})}, {3, 0}, expanded({3, 0}));
  check("expand", {none({3, 1})}, {3, 0}, expanded({3, 0}));
  check("expand", {none({0})}, {2, 0}, expanded({2, 0}));
  check("expand", {full({}, 4, DType::f64)}, {2, 3}, 4, expanded({2, 3}));
  check("expand", {full({}, 4, DType::f64)}, {}, 4, expanded({}));
  check_throws("expand", [] { expand(none({0}), {3}); });
  check("pad", {none({0})}, {3}, 7, [](Inputs v) { return pad(v[0], 0, 2, 1, 7); });
  check("pad", {none({3, 0})}, {3, 2}, 7, [](Inputs v) { return pad(v[0], 1, 0, 2, 7); });
  check("pad", {none({3, 0})}, {5, 0}, [](Inputs v) { return pad(v[0], 0, 1, 1, 7); });
  check_throws("pad", [] { pad(none({}), 0, 1, 1); });
  for (const std::int64_t repeats : {0, 2})
    for (const Shape& s : {Shape{0}, Shape{0, 3}, Shape{3, 0}, Shape{2, 0, 3}, Shape{3}})
      for (int axis = 0; axis < s.rank(); ++axis)
        check("repeat_interleave", {none(s)}, s.with(axis, s[axis] * repeats),
              [=](Inputs v) { return repeat_interleave(v[0], repeats, axis); });
}

TEST_CASE("joining and splitting") {
  const auto joined = [](int axis) { return [axis](Inputs v) { return concat(v, axis); }; };
  const Tensor fives = full({2, 3}, 5, DType::f64);
  check("concat", {none({0, 3}), fives}, {2, 3}, 5, joined(0));
  check("concat", {fives, none({2, 0}), none({2, 0})}, {2, 3}, 5, joined(1));
  check("concat", {none({0, 3}), none({0, 2})}, {0, 5}, joined(1));
  check("concat", {none({0}), none({0})}, {0}, joined(0));
  check_throws("concat", [] { concat({none({}), none({})}, 0); });
  check_throws("concat", [] { concat({none({0}), none({2, 3})}, 0); });
  const auto stacked = [](int axis) { return [axis](Inputs v) { return stack(v, axis); }; };
  check("stack", {full({}, 5, DType::f64), full({}, 5, DType::f64)}, {2}, 5, stacked(0));
  check("stack", {none({0}), none({0})}, {2, 0}, stacked(0));
  check("stack", {none({0, 3}), none({0, 3}), none({0, 3})}, {0, 3, 3}, stacked(-1));
  for (const std::int64_t at : {0, 3}) {
    check("split", {none({3, 2})}, {at, 2}, [=](Inputs v) { return split(v[0], 0, at)[0]; });
    check("split", {none({3, 2})}, {3 - at, 2}, [=](Inputs v) { return split(v[0], 0, at)[1]; });
    check("split", {fives}, {2, 3}, 5, [=](Inputs v) {
      const auto [a, b] = split(v[0], 1, at);
      return concat({b, a}, 1);
    });
  }
  check("split", {none({0})}, {0}, [](Inputs v) { return split(v[0], 0, 0)[1]; });
  check("split", {fives}, {2, 3}, 5, [](Inputs v) { return split(v[0], 1, {0, 3, 0})[1]; });
  check("chunk", {none({0, 3})}, {0, 3}, [](Inputs v) { return chunk<2>(v[0], 0)[1]; });
  check("chunk", {none({2, 0})}, {1, 0}, [](Inputs v) { return chunk<2>(v[0], 0)[1]; });
}
