// Faults reported of other frameworks, looked for wherever they could happen: in every function of a kind, and in every
// row of the gradient-check catalogue. The single ops have their own cases in their own tests.
#include <functional>
#include <string>

#include "autograd/ops.h"
#include "error_message.h"
#include "layers/attention.h"
#include "layers/layernorm.h"
#include "row_testing.h"
#include "tests/cases/cases.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

using Op = std::function<Var(const Var&)>;

// The outputs, and the gradients of the leaves and parameters for a fixed random cotangent.
struct Pass {
  std::vector<Tensor> outputs, gradients;
};

std::vector<NamedParameter> parameters_of(const Case& c) {
  return c.module ? parameters(*c.module) : std::vector<NamedParameter>{};
}

Tensor cotangent_of(const std::vector<Var>& outputs) {
  std::int64_t size = 0;
  for (const Var& y : outputs) size += y.numel();
  return random_normal({size}, DType::f64, 3);
}

// `change` is called between forward and backward, with the leaves and the outputs.
using Change = std::function<void(std::vector<Tensor>&, const std::vector<Var>&)>;
Pass run(const Case& c, const Change& change = {}) {
  if (c.module) zero_grad(*c.module);
  Tape tape;
  std::vector<Tensor> leaves;
  std::vector<Var> watched;
  for (const Tensor& input : c.inputs) {
    leaves.push_back(input.to(DType::f32));
    watched.push_back(tape.watch(leaves.back()));
  }
  Pass pass;
  {
    const std::vector<Var> outputs = c.function(watched);
    for (const Var& y : outputs) pass.outputs.push_back(y.value().clone());
    const Var loss = inner_product(outputs, cotangent_of(outputs));
    if (change) change(leaves, outputs);
    if (loss.tracked()) tape.backward(loss);
  }
  for (const Var& leaf : watched) pass.gradients.push_back(tape.grad(leaf));
  for (const NamedParameter& p : parameters_of(c))
    pass.gradients.push_back(p.parameter->has_grad() ? p.parameter->grad().clone() : Tensor());
  return pass;
}

// The same values; a zero may have another sign.
bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (bool(a[i]) != bool(b[i])) return false;
    if (!a[i] || same_bits(a[i], b[i])) continue;
    for (std::int64_t k = 0; k < a[i].numel(); ++k)
      if (!close(a[i].at(k), b[i].at(k), 0)) return false;
  }
  return true;
}

// Every row of the catalogue, on one thread: the rows are small.
template <class F>
void for_each_row(F f) {
  set_num_threads(1);
  for (const Case& c : all_cases()) {
    if (!c.skip.empty()) continue;
    CAPTURE(c.name);
    f(c);
  }
  set_num_threads(0);
}

}  // namespace

TEST_CASE("G05 every row of the catalogue: an input, a parameter or an output changed before backward") {
  int refused = 0;
  for_each_row([&](const Case& c) {
    const Pass right = run(c);
    // Either the change is found, or the gradients do not depend on it.
    const auto check = [&](const std::string& what, const Change& change) {
      CAPTURE(what);
      std::string text;
      Pass got;
      try {
        got = run(c, change);
      } catch (const Error& e) {
        text = e.what();
      }
      refused += !text.empty();
      if (text.empty())
        CHECK(same(got.gradients, right.gradients));
      else
        CHECK_MESSAGE(has(text, "has since been changed"), text);
    };
    for (std::size_t i = 0; i < c.inputs.size(); ++i)
      check(text_of("input ", i), [i](std::vector<Tensor>& leaves, const std::vector<Var>&) { leaves[i].fill(0.37); });
    for (std::size_t k = 0; k < right.outputs.size(); ++k)
      check(text_of("output ", k), [k](std::vector<Tensor>&, const std::vector<Var>& outputs) {
        Tensor y = outputs[k].value();
        y.fill(0.37);
      });
    for (const NamedParameter& p : parameters_of(c)) {
      const Tensor before = p.parameter->value().clone();
      check(p.name, [&p](std::vector<Tensor>&, const std::vector<Var>&) { p.parameter->mutable_value().fill(0.37); });
      p.parameter->assign(before);
    }
  });
  CHECK(refused > 500);
}

TEST_CASE("A05 mask polarity, and 0/1 float masks: every entry point agrees") {
  const Tensor keep = from_values<std::uint8_t>({1, 0}, {2}), hide = tensor({0, -kInf}), doubtful = tensor({1, 0});
  const Var zero = zeros({1, 2, 1, 1}), values = tensor({1, 2}, {1, 2, 1, 1});
  Rng rng(1);
  Attention layer({.width = 1, .heads = 1, .causal = false}, rng);
  layer.qkv.weight.assign(tensor({0, 0, 1}, {1, 3}));
  layer.out.weight.assign(tensor({1}, {1, 1}));
  // Each gives what key 0 alone gives: 1.
  const std::pair<const char*, std::function<Var(const Var&)>> entries[] = {
      {"softmax",
       [](const Var& m) {
         return sum(softmax(zeros({2}), m) * Var(tensor({1, 2})));
       }},
      {"log_softmax",
       [](const Var& m) {
         return sum(exp(log_softmax(zeros({2}), m)) * Var(tensor({1, 2})));
       }},
      {"attention", [&](const Var& m) { return attention(slice(zero, 1, 0, 1), zero, values, {}, m); }},
      {"attention_packed",
       [](const Var& m) {
         const Var qkv = tensor({0, 0, 1, 0, 0, 2}, {1, 2, 3});
         return slice(attention_packed(qkv, 1, {}, m), 1, 1, 2);
       }},
      {"Attention",
       [&](const Var& m) {
         return slice(layer(Var(tensor({1, 2}, {1, 2, 1})), {.mask = m}), 1, 1, 2);
       }},
  };
  for (const auto& [name, entry] : entries) {
    CAPTURE(name);
    CHECK(entry(keep).item() == doctest::Approx(1).epsilon(1e-6));
    CHECK(entry(hide).item() == doctest::Approx(1).epsilon(1e-6));
    const std::string text = message_of([&, f = &entry] { (*f)(doubtful); });
    CHECK_MESSAGE(has(text, "holds only 0 and 1"), text);
    // Scores that are learned may hold them: weights 0.73106 and 0.26894.
    Tape tape;
    CHECK(entry(tape.watch(doubtful)).item() == doctest::Approx(1.2689414).epsilon(1e-6));
  }
}

TEST_CASE("N01 the other form of LayerNorm, variance and deviation with a large mean") {
  const Tensor x = tensor({40000, 40001, 40002, 40003});
  const LayerNorm layer(4, LayerNormForm::std_plus_eps);
  const double unit = 1 / (std::sqrt(5.0 / 3) + 1e-6);
  check_close(layer(x).value(), {-1.5 * unit, -0.5 * unit, 0.5 * unit, 1.5 * unit}, 1e-6);
  check_close(tapestry::var(x, {}, false, 0).value(), {1.25}, 0);
  check_close(stddev(x).value(), {std::sqrt(5.0 / 3)}, 1e-7);
}

TEST_CASE_TEMPLATE("N06 every form of cross-entropy keeps loss and gradient of a far logit", T, float, double) {
  constexpr DType dtype = dtype_of<T>;
  const Tensor target = from_values<std::int64_t>({0}, {1}), one_hot_target = tensor({1, 0}, {1, 2}, dtype);
  const Op forms[] = {
      [&](const Var& z) { return cross_entropy(z, target).loss; },
      [&](const Var& z) { return cross_entropy(z, target, {.class_weights = full({2}, 3, dtype)}).loss; },
      [&](const Var& z) { return soft_cross_entropy(z, one_hot_target).loss; },
      [&](const Var& z) { return nll(log_softmax(z), target); },
  };
  for (const Op& form : forms)
    for (double far : {60.0, 1000.0}) {
      Tape tape;
      const Var z = tape.watch(tensor({-far / 2, far / 2}, {1, 2}, dtype)), loss = form(z);
      CHECK(loss.item() == doctest::Approx(far).epsilon(1e-7));
      tape.backward(loss);
      check_close(tape.grad(z), {-1, 1}, 1e-7);
    }
}

TEST_CASE("N10 no loss takes targets of another shape, a column least of all") {
  const Tensor z = random_normal({3, 4}, DType::f32, 1), labels = from_values<std::int64_t>({0, 1, 2}, {3});
  for (const Tensor& bad : {labels.reshape({3, 1}), labels.reshape({1, 3}), from_values<std::int64_t>({0, 1}, {2})}) {
    for (const std::string& text :
         {message_of([&] { cross_entropy(z, bad); }), message_of([&] { nll(log_softmax(z), bad); })}) {
      CHECK_MESSAGE(has(text, "[3, 4]"), text);
      CHECK_MESSAGE(has(text, to_text(bad.shape())), text);
    }
  }
  const std::string text = message_of([&] { soft_cross_entropy(z, zeros({4})); });
  CHECK_MESSAGE(has(text, "soft_cross_entropy: logits are [3, 4]"), text);
  CHECK_MESSAGE(has(text, "not [4]"), text);
}

TEST_CASE("G06 a chain of 200,000 ops that is never walked is destroyed without recursion") {
  Tape tape;
  Var y = tape.watch(full({1}, 1, DType::f64));
  for (int i = 0; i < 200000; ++i) y = affine(y, 1 + 1e-6, 0);
  CHECK(y.item() == doctest::Approx(1.2214026).epsilon(1e-7));
}

TEST_CASE("G10 bad index or label: every function that takes ids") {
  Tape tape;
  const Var table = tape.watch(random_normal({5, 3}, DType::f32, 1)),
            logits = tape.watch(random_normal({3, 5}, DType::f32, 2));
  const CrossEntropyOptions all{.ignore_index = -1, .label_smoothing = 0.1, .class_weights = full({5}, 1), .z_loss = 1};
  struct Entry {
    std::string name;
    std::function<void(const Tensor&)> call;  // of ids [3]
    bool labels = false;                      // -1 is ignored
  };
  const Entry entries[] = {
      {"embedding", [&](const Tensor& ids) { embedding(table, ids, /*padding_id=*/0); }},
      {"index_select", [&](const Tensor& ids) { index_select(table, 0, ids); }},
      {"gather",
       [&](const Tensor& ids) {
         gather(table, 0, ids.reshape({1, 3}));
       }},
      {"scatter_add",
       [&](const Tensor& ids) {
         scatter_add(table, 0, ids.reshape({1, 3}), Var(zeros({1, 3})));
       }},
      {"one_hot", [&](const Tensor& ids) { one_hot(ids, 5); }},
      {"cross_entropy", [&](const Tensor& ids) { cross_entropy(logits, ids, -1); }, true},
      {"cross_entropy", [&](const Tensor& ids) { cross_entropy(logits, ids, all); }, true},
      {"nll", [&](const Tensor& ids) { nll(logits, ids, {.ignore_index = -1}); }, true},
  };
  for (const Entry& entry : entries)
    for (DType dtype : {DType::i32, DType::i64}) {
      CAPTURE(entry.name);
      for (std::int64_t bad : {std::int64_t{5}, std::int64_t{entry.labels ? -4 : -1}, std::int64_t{2147483647}}) {
        const std::int64_t records = tape.size();
        const std::string text = message_of([&] { entry.call(from_values<std::int64_t>({0, 4, bad}, {3}).to(dtype)); });
        for (const std::string& part : {entry.name + std::string(": "), " " + std::to_string(bad) + " ",
                                        std::string("position 2"), std::string("[0, 5)")})
          CHECK_MESSAGE(has(text, part), text);
        CHECK(tape.size() == records);
      }
      CHECK(message_of([&] {
              entry.call(from_values<std::int64_t>({0, 4, 1}, {3}).to(dtype));
            }) == "nothing was thrown");
      if (entry.labels) CHECK(message_of([&] { entry.call(full({3}, -1, dtype)); }) == "nothing was thrown");
    }
}

TEST_CASE("G11 clipping by the norm: a zero vector has gradient 1") {
  // x / max(|x| / limit, 1): the norm's gradient at 0 is 0, and the one that did not win gets none.
  const auto clipped = [](const Var& x) { return x / maximum(norm(x) / 2, Var(full({}, 1, x.dtype()))); };
  for (const auto& [x, y, dx] : {std::tuple{std::array{0.0, 0.0}, std::vector{0.0, 0.0}, std::vector{1.0, 1.0}},
                                 {std::array{0.6, 0.8}, {0.6, 0.8}, {1.0, 1.0}},
                                 {std::array{6.0, 8.0}, {1.2, 1.6}, {0.032, -0.024}}}) {
    Tape tape;
    const Var v = tape.watch(tensor({x[0], x[1]})), out = clipped(v);
    check_close(out.value(), y, 1e-6);
    tape.backward(sum(out));
    check_close(tape.grad(v), dx, 1e-6);
  }
}

TEST_CASE("G11 an infinite or NaN gradient stays out of what was not selected") {
  const Tensor keep = from_values<std::uint8_t>({1, 0, 1}, {3});
  const Tensor index = from_values<std::int64_t>({0}, {1});
  const struct {
    std::string name;
    Op f;
    Tensor x;
    std::vector<std::int64_t> unselected;
  } choices[] = {
      {"relu", tapestry::relu, tensor({-1, 2, -kInf}), {0, 2}},
      {"clamp", [](const Var& x) { return clamp(x, -1, 1); }, tensor({-2, 0, 3, kInf}), {0, 2, 3}},
      {"sign", tapestry::sign, tensor({-2, 0, 3}), {0, 1, 2}},
      {"minimum", [](const Var& x) { return minimum(x, Var(zeros({}, x.dtype()))); }, tensor({-1, 2}), {1}},
      {"maximum", [](const Var& x) { return maximum(x, Var(zeros({}, x.dtype()))); }, tensor({-1, 2}), {0}},
      {"max", [](const Var& x) { return tapestry::max(x); }, tensor({-1, 2, 2}), {0, 2}},
      {"min", [](const Var& x) { return tapestry::min(x); }, tensor({-1, 2, -1}), {1, 2}},
      {"where", [&](const Var& x) { return where(keep, x, Var(zeros({3}, x.dtype()))); }, tensor({1, 2, 3}), {1}},
      {"masked_fill", [&](const Var& x) { return masked_fill(x, keep, 0); }, tensor({1, 2, 3}), {0, 2}},
      {"tril", [](const Var& x) { return tril(x); }, full({2, 2}, 1), {1}},
      {"triu", [](const Var& x) { return triu(x); }, full({2, 2}, 1), {2}},
      {"slice", [](const Var& x) { return slice(x, 0, 0, 3, 2); }, tensor({1, 2, 3}), {1}},
      {"index_select", [&](const Var& x) { return index_select(x, 0, index); }, tensor({1, 2}), {1}},
      {"gather", [&](const Var& x) { return gather(x, 0, index); }, tensor({1, 2}), {1}},
      {"embedding", [&](const Var& x) { return embedding(x, index); }, full({2, 1}, 1), {1}},
      {"padding row", [&](const Var& x) { return embedding(x, index, 0); }, full({2, 1}, 1), {0, 1}},
      {"dropout of all", [](const Var& x) { return dropout(x, 1, {}); }, tensor({1, 2}), {0, 1}},
      {"pow(x, 0)", [](const Var& x) { return pow(x, 0); }, tensor({0, 2}), {0, 1}},
  };
  for (const auto& c : choices)
    for (DType dtype : {DType::f32, DType::f64})
      for (double poison : {kInf, -kInf, kNaN}) {
        CAPTURE(c.name);
        CAPTURE(poison);
        Tape tape;
        const Var x = tape.watch(c.x.to(dtype));
        const Var y = c.f(x);
        tape.backward(y, full(y.shape(), poison, dtype));
        for (std::int64_t i : c.unselected) {
          CAPTURE(i);
          CHECK(tape.grad(x).at(i) == 0);
        }
      }
}

TEST_CASE("G11 a root of what a bound made 0 has gradient 0") {
  for (const Op& f :
       {Op([](const Var& x) { return sqrt(relu(x)); }), Op([](const Var& x) { return sqrt(clamp(x, 0, 10)); })}) {
    Tape tape;
    const Var x = tape.watch(tensor({-1, 4, -0.5}));
    tape.backward(sum(f(x)));
    check_close(tape.grad(x), {0, 0.25, 0}, 1e-7);
  }
}

TEST_CASE("O15 the identity times A is A to the last bit, by every product") {
  for (std::int64_t n : {1, 5, 50, 130}) {
    CAPTURE(n);
    Tensor eye = zeros({n, n}), a = empty({n, n});
    for (std::int64_t i = 0; i < n * n; ++i) {
      if (i % (n + 1) == 0) eye.mutable_data<float>()[i] = 1;
      a.mutable_data<float>()[i] = 1 + 0x1p-13f + static_cast<float>(i % 512) * 0x1p-23f;
    }
    const Tensor at = transpose(a).value();
    CHECK(same_bits(matmul(eye, a).value(), a));
    CHECK(same_bits(matmul(a, eye).value(), a));
    CHECK(same_bits(matmul(eye, at, true, true).value(), a));
    CHECK(same_bits(matmul(at, eye, true).value(), a));
    CHECK(same_bits(linear(a, eye).value(), a));
    CHECK(same_bits(linear(eye, a).value(), a));
    Tape tape;
    const Var x = tape.watch(eye), w = tape.watch(eye);
    tape.backward(linear(x, w), a);
    CHECK(same_bits(tape.grad(x), a));
    CHECK(same_bits(tape.grad(w), a));
  }
}
