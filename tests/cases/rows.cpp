// Functions over the last axis: softmax, layernorm, embedding, dropout, cross_entropy, nll.
#include <limits>

#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// x with some entries at -inf; row 1 has nothing else.
Var with_hidden(const Var& x) {
  Tensor hidden = zeros(x.shape(), DType::f64);
  double* h = hidden.mutable_data<double>();
  const std::int64_t columns = x.shape().back();
  for (std::int64_t i = 0; i < x.numel(); ++i)
    if (i / columns == 1 || i % 3 == 1) h[i] = -kInfinity;
  return x + Var(hidden.to(x.dtype()));
}

void add_softmax(std::vector<Case>& cases) {
  for (const Shape& s : {Shape{1}, Shape{31}, Shape{3, 1}, Shape{3, 33}, Shape{2, 3, 5}, Shape{0, 4}, Shape{61, 257}}) {
    cases.push_back(row(text_of("softmax ", s), {normal(s, 1, 2)}, [](const Var& x) { return softmax(x); }));
    cases.push_back(row(text_of("log_softmax ", s), {normal(s, 1, 2)}, [](const Var& x) { return log_softmax(x); }));
  }
  cases.push_back(
      row("softmax [3, 7] with -inf", {normal({3, 7})}, [](const Var& x) { return softmax(with_hidden(x)); }));
  // A u8 mask that keeps two of three, one that hides a row, and float masks that broadcast and get gradients.
  for (const Shape& s : {Shape{31}, Shape{3, 1}, Shape{3, 33}, Shape{61, 257}}) {
    const Tensor keep = ids(s, 3, 4).to(DType::u8);
    cases.push_back(
        row(text_of("softmax ", s, " u8 mask"), {normal(s, 1, 2)}, [keep](const Var& x) { return softmax(x, keep); }));
    // exp, since differences of -inf check nothing; test_softmax.cpp checks the rest.
    cases.push_back(row(text_of("log_softmax ", s, " u8 mask exp"), {normal(s, 1, 2)},
                        [keep](const Var& x) { return exp(log_softmax(x, keep)); }));
  }
  cases.push_back(row("softmax [2, 3, 5] a row hidden", {normal({2, 3, 5})}, [](const Var& x) {
    return softmax(x, tensor({1, 0, 1}, {3, 1}).to(DType::u8));
  }));
  for (const Shape& m : {Shape{5}, Shape{3, 5}, Shape{2, 1, 5}, Shape{2, 3, 5}}) {
    const std::vector<Tensor> inputs{normal({2, 3, 5}, 1, 2), normal(m, 2)};
    cases.push_back(row(text_of("softmax [2, 3, 5] float mask ", m), inputs,
                        [](const Var& x, const Var& mask) { return softmax(x, mask); }));
    cases.push_back(row(text_of("log_softmax [2, 3, 5] float mask ", m), inputs,
                        [](const Var& x, const Var& mask) { return log_softmax(x, mask); }));
  }
  cases.push_back(
      row("softmax [2, 33] shifted by 1e4", {normal({2, 33})}, [](const Var& x) { return softmax((x - 0.5) + 1e4); }));
  cases.back().f32_tolerance = 2e-3;  // f32 rounds x + 1e4 to 1e-3
  cases.back().skip_low = "bf16 rounds x + 1e4 to 64, f16 to 8";
}

void add_layernorm(std::vector<Case>& cases) {
  for (const Shape& s : {Shape{1}, Shape{31}, Shape{3, 1}, Shape{2, 2}, Shape{3, 33}, Shape{2, 3, 5}, Shape{0, 4},
                         Shape{61, 257}, Shape{1, 1031}}) {
    const Shape channels{s.back()};
    cases.push_back(row(text_of("layernorm ", s), {normal(s, 1), normal(channels, 2), normal(channels, 3)},
                        [](const Var& x, const Var& w, const Var& b) { return layernorm(x, w, b); }));
    // Of one or two channels dx is 0 or nearly so; what f32 leaves of it is rounding noise times rstd.
    if (s.back() <= 2) cases.back().f32_tolerance = 0.1;
  }
  cases.push_back(row("layernorm [3, 7] eps 0.5", {normal({3, 7}, 1), normal({7}, 2), normal({7}, 3)},
                      [](const Var& x, const Var& w, const Var& b) { return layernorm(x, w, b, 0.5); }));
  for (const Shape& s : {Shape{1}, Shape{3, 1}, Shape{2, 2}, Shape{31}, Shape{3, 33}, Shape{0, 4}, Shape{61, 257}}) {
    const Shape channels{s.back()};
    auto second = [](const Var& x, const Var& w, const Var& b) {
      return layernorm(x, w, b, 0.1, LayerNormForm::std_plus_eps);
    };
    cases.push_back(
        row(text_of("layernorm std_plus_eps ", s), {normal(s, 1), normal(channels, 2), normal(channels, 3)}, second));
    if (s.back() == 1) cases.back().f32_tolerance = 0.1;
  }
}

void add_embedding(std::vector<Case>& cases) {
  auto add = [&](const Shape& table, const Shape& shape, DType dtype, std::int64_t padding) {
    cases.push_back(row(
        text_of("embedding ", table, " ids ", dtype, " ", shape, padding >= 0 ? " padding" : ""), {normal(table, 1)},
        [i = ids(shape, table[0], 2, dtype), padding](const Var& t) { return embedding(t, i, padding); }));
  };
  add({1, 1}, {1}, DType::i32, -1);
  add({5, 3}, {7}, DType::i64, -1);
  add({5, 31}, {2, 3}, DType::i32, -1);
  add({4, 33}, {}, DType::i32, -1);
  add({5, 3}, {0}, DType::i32, -1);
  add({67, 129}, {3, 101}, DType::i32, -1);
  // The value of a padding row is used, but its gradient is 0 by definition: keep it out of the ids.
  cases.push_back(row("embedding [5, 3] padding id not among the ids", {normal({5, 3}, 1)},
                      [i = tensor({1, 2, 2, 4}).to(DType::i32)](const Var& t) { return embedding(t, i, 0); }));
}

void add_dropout(std::vector<Case>& cases) {
  for (const Shape& s : {Shape{1}, Shape{31}, Shape{3, 33}, Shape{7, 2003}})
    for (const double p : {0.0, 0.3, 1.0})
      cases.push_back(row(text_of("dropout ", s, " p ", p), {normal(s)},
                          [p, key = case_key(5, 6)](const Var& x) { return dropout(x, p, key); }));
}

void add_cross_entropy(std::vector<Case>& cases) {
  auto add = [&](const Shape& logits, DType dtype, const std::string& what, auto&& change) {
    const Shape rows(logits.dims().first(static_cast<std::size_t>(logits.rank() - 1)));
    Tensor targets = ids(rows, logits.back(), 2, DType::i64);
    change(targets.mutable_data<std::int64_t>(), targets.numel());
    cases.push_back(row(text_of("cross_entropy ", logits, " ", dtype, what), {normal(logits, 1, 2)},
                        [t = targets.to(dtype)](const Var& x) { return cross_entropy(x, t).loss; }));
  };
  auto keep = [](std::int64_t*, std::int64_t) {};
  auto ignore_some = [](std::int64_t* t, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += 3) t[i] = -100;
  };
  auto ignore_all = [](std::int64_t* t, std::int64_t n) { std::fill(t, t + n, -100); };
  add({1, 1}, DType::i32, "", keep);
  add({3, 31}, DType::i32, "", keep);
  add({2, 3, 33}, DType::i64, "", keep);
  add({7, 5}, DType::i64, " some ignored", ignore_some);
  add({3, 5}, DType::i32, " all ignored", ignore_all);
  add({61, 257}, DType::i32, " some ignored", ignore_some);
  cases.push_back(row("cross_entropy [2, 3] ignore_index 0", {normal({2, 3})}, [](const Var& x) {
    return cross_entropy(x, tensor({0, 2}).to(DType::i32), 0).loss;
  }));
}

// Every option of cross_entropy, soft_cross_entropy and nll, alone and together, at several sizes.
void add_cross_entropy_options(std::vector<Case>& cases) {
  struct Setting {
    const char* name;
    double smoothing;
    bool weighted;
    double z_loss;
  };
  for (const Shape& s : {Shape{1, 2}, Shape{7, 5}, Shape{2, 3, 33}, Shape{5, 129}})
    for (const Setting& setting : {Setting{" smoothing", 0.1, false, 0}, Setting{" weights", 0, true, 0},
                                   Setting{" z-loss", 0, false, 0.5}, Setting{" all options", 0.3, true, 0.5}}) {
      // Of two classes one is soon all but certain, and 1 - p has few digits left.
      const double spread = s.back() == 2 ? 0.7 : 2;
      const Shape rows(s.dims().first(static_cast<std::size_t>(s.rank() - 1)));
      Tensor targets = ids(rows, s.back(), 2);
      if (rows.numel() > 1) targets.mutable_data<std::int32_t>()[1] = -100;
      const auto options = [setting, weights = positive({s.back()}, 3)](DType dtype) {
        CrossEntropyOptions o{.label_smoothing = setting.smoothing, .z_loss = setting.z_loss};
        if (setting.weighted) o.class_weights = weights.to(accumulate_dtype(dtype));
        return o;
      };
      cases.push_back(row(text_of("cross_entropy ", s, setting.name), {normal(s, 1, spread)},
                          [=](const Var& x) { return cross_entropy(x, targets, options(x.dtype())).loss; }));
      cases.push_back(
          row(text_of("soft_cross_entropy ", s, setting.name), {normal(s, 1, spread), uniform(s, 0.1, 0.9, 4)},
              [=](const Var& x, const Var& q) { return soft_cross_entropy(x, q, options(x.dtype())).loss; }));
      if (setting.smoothing + setting.z_loss > 0) continue;
      for (const LossReduction reduction : {LossReduction::mean, LossReduction::sum, LossReduction::none})
        cases.push_back(
            row(text_of("nll ", s, setting.name, " ", static_cast<int>(reduction)), {normal(s, 1)}, [=](const Var& x) {
              return nll(x, targets, {.class_weights = options(x.dtype()).class_weights, .reduction = reduction});
            }));
    }
}

}  // namespace

std::vector<Case> row_cases() {
  std::vector<Case> cases;
  add_softmax(cases);
  add_layernorm(cases);
  add_embedding(cases);
  add_dropout(cases);
  add_cross_entropy(cases);
  add_cross_entropy_options(cases);
  return cases;
}

}  // namespace tapestry
