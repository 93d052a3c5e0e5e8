// Functions of ops.h that choose, multiply, normalise or attend, and losses, on tensors without elements and on inputs
// of rank 0 and 1: shapes, values, gradients, and what throws.
#include "tests/empty_shapes.h"

using namespace tapestry;
using namespace tapestry::testing;

TEST_CASE("rows and elements chosen by index") {
  const auto gathered = [](int axis, const Shape& s) {
    return [=](Inputs v) { return gather(v[0], axis, ids_of(s)); };
  };
  check("gather", {none({0, 3})}, {0, 2}, gathered(1, {0, 2}));
  check("gather", {none({3, 0})}, {2, 0}, gathered(0, {2, 0}));
  check("gather", {none({3})}, {0}, gathered(0, {0}));
  check("gather", {none({0})}, {0}, gathered(0, {0}));
  check_throws("gather", [] { gather(none({0}), 0, ids_of({1})); });
  check_throws("gather", [] { gather(none({}), 0, ids_of({})); });
  const auto selected = [](int axis, std::int64_t n) {
    return [=](Inputs v) { return index_select(v[0], axis, ids_of({n})); };
  };
  check("index_select", {none({3, 2})}, {0, 2}, selected(0, 0));
  check("index_select", {none({3, 0})}, {5, 0}, selected(0, 5));
  check("index_select", {none({0, 3})}, {0, 5}, selected(1, 5));
  check("index_select", {none({0})}, {0}, selected(0, 0));
  check_throws("index_select", [] { index_select(none({0, 3}), 0, ids_of({1})); });
  const auto scattered = [](int axis, const Shape& s) {
    return [=](Inputs v) { return scatter_add(v[0], axis, ids_of(s), v[1]); };
  };
  check("scatter_add", {full({3}, 4, DType::f64), none({0})}, {3}, 4, scattered(0, {0}));
  check("scatter_add", {none({0, 3}), none({0, 2})}, {0, 3}, scattered(1, {0, 2}));
  check("scatter_add", {none({3, 0}), none({2, 0})}, {3, 0}, scattered(0, {2, 0}));
  CHECK(one_hot(ids_of({0, 2}), 3).shape() == Shape{0, 2, 3});
  CHECK(one_hot(ids_of({0}), 0).shape() == Shape{0, 0});
  CHECK(one_hot(ids_of({}), 2).shape() == Shape{2});
  check_throws("one_hot", [] { one_hot(ids_of({1}), 0); });
  for (const Shape& s : {Shape{0, 3}, Shape{3, 0}, Shape{2, 0, 3}, Shape{0, 2, 2}}) {
    check("tril", {none(s)}, s, [](Inputs v) { return tril(v[0]); });
    check("triu", {none(s)}, s, [](Inputs v) { return triu(v[0], 1); });
  }
  check_throws("tril", [] { tril(none({0})); });
  const auto embedded = [](const Shape& s) { return [s](Inputs v) { return embedding(v[0], ids_of(s)); }; };
  check("embedding", {none({5, 3})}, {0, 3}, embedded({0}));
  check("embedding", {none({5, 3})}, {2, 0, 3}, embedded({2, 0}));
  check("embedding", {none({5, 3})}, {3}, embedded({}));
  check("embedding", {none({5, 0})}, {2, 0}, embedded({2}));
  check("embedding", {none({0, 3})}, {0, 3}, embedded({0}));
  check_throws("embedding", [] { embedding(none({0, 3}), ids_of({1})); });
}

TEST_CASE("products; a sum over K = 0 is 0") {
  struct Row {
    Shape a, b, y;
    bool transpose_a = false, transpose_b = false;
  };
  for (const Row& r : std::vector<Row>{{{2, 0}, {0, 3}, {2, 3}},
                                       {{0, 2}, {0, 3}, {2, 3}, true, false},
                                       {{2, 0}, {3, 0}, {2, 3}, false, true},
                                       {{0, 4}, {4, 3}, {0, 3}},
                                       {{2, 4}, {4, 0}, {2, 0}},
                                       {{0}, {0}, {}},
                                       {{0}, {0, 3}, {3}},
                                       {{2, 0}, {0}, {2}},
                                       {{4}, {4, 0}, {0}},
                                       {{0, 4}, {4}, {0}},
                                       {{0, 2, 4}, {4, 3}, {0, 2, 3}},
                                       {{0, 2, 4}, {1, 4, 3}, {0, 2, 3}},
                                       {{5, 2, 0}, {0, 3}, {5, 2, 3}},
                                       {{2, 4}, {0, 4, 3}, {0, 2, 3}}})
    check("matmul", {full(r.a, 2, DType::f64), full(r.b, 2, DType::f64)}, r.y,
          [=](Inputs v) { return matmul(v[0], v[1], r.transpose_a, r.transpose_b); });
  check("matmul", {full({1}, 2, DType::f64), full({1}, 2, DType::f64)}, {}, 4,
        [](Inputs v) { return matmul(v[0], v[1]); });
  check_throws("matmul", [] { matmul(none({}), none({})); });
  const Function linear2 = [](Inputs v) { return linear(v[0], v[1]); };
  const Function linear3 = [](Inputs v) { return linear(v[0], v[1], v[2]); };
  const Tensor bias = full({3}, 5, DType::f64);
  check("linear", {none({2, 0}), none({0, 3})}, {2, 3}, linear2);
  check("linear", {none({2, 0}), none({0, 3}), bias}, {2, 3}, 5, linear3);
  check("linear", {none({0}), none({0, 3}), bias}, {3}, 5, linear3);
  check("linear", {none({0, 4}), none({4, 3}), bias}, {0, 3}, linear3);
  check("linear", {none({2, 0, 4}), none({4, 3}), bias}, {2, 0, 3}, linear3);
  check("linear", {none({2, 4}), none({4, 0}), none({0})}, {2, 0}, linear3);
  check("linear", {none({4}), none({4, 3}), bias}, {3}, 5, linear3);
}

TEST_CASE("softmax and normalisations") {
  for (const Shape& s : kEmpty) {
    check("softmax", {none(s)}, s, [](Inputs v) { return softmax(v[0]); });
    check("log_softmax", {none(s)}, s, [](Inputs v) { return log_softmax(v[0]); });
    const std::vector<Tensor> inputs{none(s), none({s.back()}), none({s.back()})};
    check("layernorm", inputs, s, [](Inputs v) { return layernorm(v[0], v[1], v[2]); });
    check("layernorm", inputs, s,
          [](Inputs v) { return layernorm(v[0], v[1], v[2], 1e-6, LayerNormForm::std_plus_eps); });
    check("rmsnorm", {inputs[0], inputs[1]}, s, [](Inputs v) { return rmsnorm(v[0], v[1]); });
  }
  check("softmax", {none({1})}, {1}, 1, [](Inputs v) { return softmax(v[0]); });
  check("log_softmax", {none({1})}, {1}, [](Inputs v) { return log_softmax(v[0]); });
  const Var one = none({});
  check_throws("softmax", [&] { softmax(one); });
  check_throws("log_softmax", [&] { log_softmax(one); });
  check_throws("layernorm", [&] { layernorm(one, one, one); });
  check_throws("rmsnorm", [&] { rmsnorm(one, one); });
  check("softmax", {none({4})}, {4}, 0.25, [](Inputs v) { return softmax(v[0]); });
  check("layernorm", {none({4}), none({4}), full({4}, 5, DType::f64)}, {4}, 5,
        [](Inputs v) { return layernorm(v[0], v[1], v[2]); });
  check("rmsnorm", {none({4}), none({4})}, {4}, [](Inputs v) { return rmsnorm(v[0], v[1]); });
  for (const bool training : {true, false})
    for (const Shape& s : {Shape{0, 3}, Shape{2, 3, 0}, Shape{0, 3, 4}})
      check("batchnorm", {none(s), none({s[1]}), none({s[1]})}, s, [=](Inputs v) {
        const Shape c = v[1].shape();
        return batchnorm(v[0], v[1], v[2], zeros(c, v[0].dtype()), full(c, 1, v[0].dtype()), training);
      });
  for (const Shape& s : {Shape{0, 4}, Shape{2, 4, 0}, Shape{0, 4, 3}})
    check("groupnorm", {none(s), none({4}), none({4})}, s, [](Inputs v) { return groupnorm(v[0], v[1], v[2], 2); });
  const Var no_channel = none({0});
  check_throws("batchnorm", [&] { batchnorm(none({3, 0}), no_channel, no_channel, none({0}), none({0}), true); });
  check_throws("groupnorm", [&] { groupnorm(none({3, 0}), no_channel, no_channel, 1); });
}

TEST_CASE("attention") {
  const Function attend = [](Inputs v) { return attention(v[0], v[1], v[2]); };
  check("attention", {none({0, 3, 2, 4}), none({0, 5, 2, 4}), none({0, 5, 2, 4})}, {0, 3, 2, 4}, attend);
  check("attention", {none({2, 0, 2, 4}), none({2, 5, 2, 4}), none({2, 5, 2, 4})}, {2, 0, 2, 4}, attend);
  check("attention", {none({2, 3, 2, 4}), none({2, 0, 2, 4}), none({2, 0, 2, 4})}, {2, 3, 2, 4}, attend);  // no key
  check("attention_packed", {none({0, 3, 12})}, {0, 3, 4}, [](Inputs v) { return attention_packed(v[0], 2); });
  check("attention_packed", {none({2, 0, 12})}, {2, 0, 4}, [](Inputs v) { return attention_packed(v[0], 2); });
}

TEST_CASE("losses: the sum over nothing is 0, the mean throws; with no target counted cross-entropy is 0") {
  using Loss = Var (*)(const Var&, const Var&, LossReduction);
  const std::vector<std::pair<const char*, Loss>> losses{
      {"mse", mse},
      {"l1", l1},
      {"huber", [](const Var& x, const Var& t, LossReduction r) { return huber(x, t, 1, r); }},
      {"bce_with_logits", [](const Var& x, const Var& t, LossReduction r) { return bce_with_logits(x, t, {}, r); }},
      {"kl_div", kl_div}};
  for (const auto& [name, loss] : losses) {
    const auto with = [loss = loss](LossReduction r) { return [=](Inputs v) { return loss(v[0], v[1], r); }; };
    for (const Shape& s : kEmpty) {
      check(name, {none(s), none(s)}, {}, with(LossReduction::sum));
      check(name, {none(s), none(s)}, s, with(LossReduction::none));
      check_throws(name, [&] { loss(none(s), none(s), LossReduction::mean); });
    }
    const double value =
        loss(full({1}, 0.5, DType::f64), full({1}, 0.7, DType::f64), LossReduction::sum).value().item();
    for (const LossReduction r : {LossReduction::mean, LossReduction::sum, LossReduction::none})
      check(name, {full({}, 0.5, DType::f64), full({}, 0.7, DType::f64)}, {}, value, with(r));
  }
  const auto entropy = [](const Shape& s) { return [s](Inputs v) { return cross_entropy(v[0], ids_of(s)).loss; }; };
  check("cross_entropy", {none({0, 3})}, {}, entropy({0}));
  check("cross_entropy", {none({2, 0, 3})}, {}, entropy({2, 0}));
  check("cross_entropy", {none({4})}, {}, std::log(4.0), entropy({}));
  CHECK(cross_entropy(none({0, 3}), ids_of({0})).valid_tokens == 0);
  check_throws("cross_entropy", [] { cross_entropy(none({3, 0}), ids_of({3})); });
  const auto soft = [](Inputs v) { return soft_cross_entropy(v[0], v[1]).loss; };
  check("soft_cross_entropy", {none({0, 3}), none({0, 3})}, {}, soft);
  check("soft_cross_entropy", {none({4}), full({4}, 0.25, DType::f64)}, {}, std::log(4.0), soft);
  for (const LossReduction r : {LossReduction::mean, LossReduction::sum})
    check("nll", {none({0, 3})}, {}, [=](Inputs v) { return nll(v[0], ids_of({0}), {.reduction = r}); });
  check("nll", {none({0, 3})}, {0},
        [](Inputs v) { return nll(v[0], ids_of({0}), {.reduction = LossReduction::none}); });
  check("nll", {full({4}, -2, DType::f64)}, {}, 2, [](Inputs v) { return nll(v[0], ids_of({})); });
}

TEST_CASE("pooling without samples or channels") {
  check("max_pool1d", {none({0, 3, 4})}, {0, 3, 2}, [](Inputs v) { return max_pool1d(v[0], {.size = 2}); });
  check("avg_pool1d", {none({3, 0, 4})}, {3, 0, 2}, [](Inputs v) { return avg_pool1d(v[0], {.size = 2}); });
  check("max_pool2d", {none({3, 0, 4, 4})}, {3, 0, 2, 2}, [](Inputs v) { return max_pool2d(v[0], {.size = 2}); });
  check("avg_pool2d", {none({0, 3, 4, 4})}, {0, 3, 2, 2}, [](Inputs v) { return avg_pool2d(v[0], {.size = 2}); });
  check_throws("max_pool1d", [] { max_pool1d(none({2, 3, 0}), {.size = 2}); });
}
