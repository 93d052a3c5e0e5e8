// Reductions over sets of axes, and running sums.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

std::string axes_text(const Axes& axes, bool keepdim) {
  std::string text;
  for (int axis : axes) text += text_of(text.empty() ? " axes " : ",", axis);
  return text + (keepdim ? " keepdim" : "");
}

// Of either sign and size 0.9 to 1.1, so that long products stay in range.
Tensor near_one(const Shape& shape) {
  Tensor t = uniform(shape, -0.1, 0.1);
  double* x = t.mutable_data<double>();
  for (std::int64_t i = 0; i < t.numel(); ++i) x[i] += i % 3 ? 1 : -1;
  return t;
}
Tensor with_zeros(Tensor t, std::initializer_list<std::int64_t> at) {
  for (std::int64_t i : at) t.mutable_data<double>()[i] = 0;
  return t;
}

void add_empty_rows(std::vector<Case>& cases) {
  const auto add = [&](const std::string& op, bool over_nothing, auto f) {
    cases.push_back(row(op + " [0, 3] no results", {normal({0, 3})}, [f](const Var& x) { return f(x, {1}, false); }));
    if (over_nothing)
      cases.push_back(
          row(op + " [0, 3] over nothing", {normal({0, 3})}, [f](const Var& x) { return f(x, {0}, false); }));
  };
  add("sum", true, sum);
  add("mean", false, mean);
  add("max", false, max);
  add("min", false, min);
  add("prod", true, prod);
  add("var", false, [](const Var& x, Axes axes, bool keepdim) { return var(x, axes, keepdim); });
  add("stddev", false, [](const Var& x, Axes axes, bool keepdim) { return stddev(x, axes, keepdim); });
  add("norm", true, norm);
  add("logsumexp", false, logsumexp);
}

}  // namespace

std::vector<Case> reduction_cases() {
  struct Over {
    Shape shape;
    Axes axes;
    bool keepdim = false;
  };
  const Over all[] = {
      {{}, {}},
      {{1}, {}},
      {{31}, {}},
      {{33}, {0}, true},
      {{3, 11}, {}},
      {{3, 11}, {}, true},
      {{3, 11}, {0}},
      {{3, 11}, {-1}, true},
      {{2, 3, 4}, {1}},
      {{2, 3, 4}, {0, 2}},
      {{2, 3, 4}, {-1, 0}, true},
      {{2, 3, 2, 5}, {1, 2}},
      {{3, 1, 5}, {1}},
      {{37, 31}, {}},
      {{129, 257}, {}},
      {{129, 257}, {0}},
      {{129, 257}, {1}},
      {{7, 129, 33}, {0, 2}},
  };
  std::vector<Case> cases;
  for (const Over& o : all) {
    const std::string text = text_of(o.shape, axes_text(o.axes, o.keepdim));
    cases.push_back(row("sum " + text, {normal(o.shape)}, [o](const Var& x) { return sum(x, o.axes, o.keepdim); }));
    cases.push_back(row("mean " + text, {normal(o.shape)}, [o](const Var& x) { return mean(x, o.axes, o.keepdim); }));
    cases.push_back(row("max " + text, {distinct(o.shape)}, [o](const Var& x) { return max(x, o.axes, o.keepdim); }));
    cases.push_back(row("min " + text, {distinct(o.shape)}, [o](const Var& x) { return min(x, o.axes, o.keepdim); }));
    // Over more terms, rounding in the finite differences of a curved function shows beside the small gradients.
    const std::int64_t terms = o.shape.numel() / sum(normal(o.shape), o.axes).numel();
    if (terms > 2000) continue;
    cases.push_back(
        row("norm " + text, {away_from_zero(o.shape)}, [o](const Var& x) { return norm(x, o.axes, o.keepdim); }));
    cases.push_back(
        row("logsumexp " + text, {normal(o.shape)}, [o](const Var& x) { return logsumexp(x, o.axes, o.keepdim); }));
    cases.push_back(row("prod " + text, {near_one(o.shape)}, [o](const Var& x) { return prod(x, o.axes, o.keepdim); }));
    if (terms == 1) continue;
    cases.push_back(row("var " + text, {normal(o.shape)}, [o](const Var& x) { return var(x, o.axes, o.keepdim); }));
    cases.push_back(
        row("stddev " + text, {normal(o.shape)}, [o](const Var& x) { return stddev(x, o.axes, o.keepdim); }));
  }
  add_empty_rows(cases);
  cases.push_back(row("prod [5] one zero", {with_zeros(normal({5}), {2})}, [](const Var& x) { return prod(x); }));
  cases.push_back(row("prod [3, 4] one and two zeros", {with_zeros(normal({3, 4}), {1, 4, 7})},
                      [](const Var& x) { return prod(x, {1}); }));
  cases.push_back(row("prod [4, 3] three zeros in a column", {with_zeros(normal({4, 3}), {1, 4, 10})},
                      [](const Var& x) { return prod(x, {0}); }));
  cases.push_back(row("var [5, 7] biased", {normal({5, 7})}, [](const Var& x) { return var(x, {0}, false, 0); }));
  cases.push_back(row("stddev [5, 7] biased", {normal({5, 7})}, [](const Var& x) { return stddev(x, {1}, true, 0); }));
  cases.push_back(row("stddev [1, 33]", {normal({1, 33})}, [](const Var& x) { return stddev(x, {-1}); }));
  cases.push_back(row("var [1] biased", {normal({1})}, [](const Var& x) { return var(x, {}, false, 0); }));
  struct Along {
    Shape shape;
    int axis;
  };
  for (const Along& a : {Along{{1}, 0}, Along{{31}, 0}, Along{{33}, -1}, Along{{3, 11}, 0}, Along{{3, 11}, 1},
                         Along{{2, 3, 4}, -2}, Along{{129, 67}, 0}, Along{{67, 129}, -1}, Along{{0, 3}, 0}})
    cases.push_back(row("cumsum " + text_of(a.shape, " axis ", a.axis), {normal(a.shape)},
                        [a](const Var& x) { return cumsum(x, a.axis); }));
  return cases;
}

}  // namespace tapestry
