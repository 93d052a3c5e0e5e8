// matmul with every combination of transposed operands and batch broadcasting, and linear.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

void add_matmul(std::vector<Case>& cases, const Shape& a, const Shape& b, bool ta = false, bool tb = false) {
  const std::string flags = text_of(ta ? " transpose_a" : "", tb ? " transpose_b" : "");
  cases.push_back(row(text_of("matmul ", a, " ", b, flags), {normal(a, 1), normal(b, 2)},
                      [ta, tb](const Var& x, const Var& y) { return matmul(x, y, ta, tb); }));
}

// a is [m, k] and b [k, n], stored as the flags ask.
void add_all_flags(std::vector<Case>& cases, std::int64_t m, std::int64_t k, std::int64_t n) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      add_matmul(cases, ta ? Shape{k, m} : Shape{m, k}, tb ? Shape{n, k} : Shape{k, n}, ta, tb);
}

void add_linear(std::vector<Case>& cases, const Shape& x, std::int64_t out, bool bias) {
  const Shape w{x.back(), out};
  std::vector<Tensor> inputs{normal(x, 1), normal(w, 2)};
  if (bias) inputs.push_back(normal({out}, 3));
  cases.push_back(row(text_of("linear ", x, " ", w, bias ? " bias" : ""), inputs,
                      [](std::span<const Var> v) { return linear(v[0], v[1], v.size() > 2 ? v[2] : Var()); }));
}

}  // namespace

std::vector<Case> product_cases() {
  std::vector<Case> cases;
  add_all_flags(cases, 1, 1, 1);
  add_all_flags(cases, 3, 5, 2);
  add_all_flags(cases, 31, 1, 33);
  add_all_flags(cases, 1, 33, 31);
  add_all_flags(cases, 7, 7, 7);
  add_all_flags(cases, 67, 129, 35);
  add_matmul(cases, {2, 3, 4}, {2, 4, 5});
  add_matmul(cases, {2, 3, 4}, {4, 5});
  add_matmul(cases, {3, 4}, {2, 4, 5});
  add_matmul(cases, {2, 4, 3}, {4, 5}, true, false);
  add_matmul(cases, {3, 4}, {2, 5, 4}, false, true);
  add_matmul(cases, {4, 3}, {2, 5, 4}, true, true);
  add_matmul(cases, {2, 1, 3, 4}, {1, 3, 4, 2});
  add_matmul(cases, {2, 1, 4, 3}, {3, 2, 4}, true, true);
  add_matmul(cases, {1, 2, 3}, {2, 3, 2});
  add_matmul(cases, {5, 67, 33}, {33, 129});
  add_matmul(cases, {0, 3}, {3, 2});
  add_matmul(cases, {2, 0}, {0, 3});
  for (const std::int64_t k : {0, 1, 31, 129}) add_matmul(cases, {k}, {k});
  add_matmul(cases, {5}, {5, 3});
  add_matmul(cases, {3, 5}, {5});
  add_matmul(cases, {5}, {3, 5}, false, true);
  add_matmul(cases, {5, 3}, {5}, true, false);
  add_matmul(cases, {33}, {2, 3, 33, 5});
  add_matmul(cases, {2, 3, 5, 33}, {33});
  add_matmul(cases, {0, 3}, {3});
  add_matmul(cases, {67, 129}, {129});
  add_matmul(cases, {129}, {129, 67});
  for (const bool bias : {false, true}) {
    add_linear(cases, {1, 1}, 1, bias);
    add_linear(cases, {5}, 3, bias);
    add_linear(cases, {3, 31}, 5, bias);
    add_linear(cases, {2, 3, 4}, 33, bias);
    add_linear(cases, {2, 1, 2, 7}, 7, bias);
    add_linear(cases, {3, 43, 65}, 131, bias);
  }
  for (const Shape& x : {Shape{1, 1}, Shape{3, 31}, Shape{0, 4}, Shape{2, 5, 33}, Shape{9, 259}}) {
    const Shape w{x.back(), 53}, y = x.with_back(53);
    cases.push_back(row(text_of("linear ", x, " ", w, " residual"),
                        {normal(x, 1), normal(w, 2), normal({53}, 3), normal(y, 4)},
                        [](const Var& v, const Var& m, const Var& b, const Var& r) { return linear(v, m, b, r); }));
    for (const GeluForm form : {GeluForm::erf, GeluForm::tanh})
      cases.push_back(row(text_of("linear_gelu ", x, " ", w, form == GeluForm::erf ? " erf" : " tanh"),
                          {normal(x, 1), normal(w, 2, 0.3), normal({53}, 3)},
                          [form](const Var& v, const Var& m, const Var& b) { return linear_gelu(v, m, b, form); }));
  }
  cases.push_back(row("linear [5, 5] its input as residual", {normal({4, 5}, 1), normal({5, 5}, 2)},
                      [](const Var& x, const Var& w) { return linear(x, w, {}, x); }));
  cases.push_back(row("linear [0, 4] [4, 3] bias", {normal({0, 4}), normal({4, 3}), normal({3})},
                      [](const Var& x, const Var& w, const Var& b) { return linear(x, w, b); }));
  return cases;
}

}  // namespace tapestry
