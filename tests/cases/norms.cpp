// Normalisations other than layernorm: rmsnorm, batchnorm, groupnorm.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

void add_rmsnorm(std::vector<Case>& cases) {
  for (const Shape& s : {Shape{1}, Shape{31}, Shape{3, 1}, Shape{2, 2}, Shape{3, 33}, Shape{2, 3, 5}, Shape{0, 4},
                         Shape{61, 257}, Shape{1, 1031}})
    cases.push_back(row(text_of("rmsnorm ", s), {normal(s, 1), normal({s.back()}, 2)},
                        [](const Var& x, const Var& w) { return rmsnorm(x, w, 0.1); }));
  cases.push_back(row("rmsnorm [3, 7] eps 1e-5", {normal({3, 7}, 1), normal({7}, 2)},
                      [](const Var& x, const Var& w) { return rmsnorm(x, w); }));
}

// The running statistics are made anew in each call: training changes them.
Case batchnorm_row(const Shape& s, bool training, double eps) {
  const Shape channels{s[1]};
  const Tensor mean = normal(channels, 4), var = positive(channels, 5);
  return row(text_of("batchnorm ", training ? "training " : "eval ", s, " eps ", eps),
             {normal(s, 1), normal(channels, 2), normal(channels, 3)}, [=](const Var& x, const Var& w, const Var& b) {
               const auto running = [&](const Tensor& t) { return t.to(DType::f32).clone().to(x.dtype()); };
               return batchnorm(x, w, b, running(mean), running(var), training, 0.1, eps);
             });
}

void add_batchnorm(std::vector<Case>& cases) {
  for (const bool training : {true, false})
    for (const Shape& s : {Shape{2, 1}, Shape{3, 31}, Shape{31, 33}, Shape{0, 3}, Shape{2, 3, 1}, Shape{1, 1, 7},
                           Shape{2, 3, 33}, Shape{2, 2, 3, 5}, Shape{67, 131}, Shape{7, 3, 257}})
      cases.push_back(batchnorm_row(s, training, 0.1));
  cases.push_back(batchnorm_row({5, 7}, true, 1e-5));
  cases.push_back(batchnorm_row({1, 3}, false, 1e-5));
}

void add_groupnorm(std::vector<Case>& cases) {
  auto add = [&](const Shape& s, std::int64_t groups) {
    const Shape channels{s[1]};
    auto f = [groups](const Var& x, const Var& w, const Var& b) { return groupnorm(x, w, b, groups, 0.1); };
    cases.push_back(
        row(text_of("groupnorm ", s, " groups ", groups), {normal(s, 1), normal(channels, 2), normal(channels, 3)}, f));
  };
  add({2, 4}, 2);
  add({3, 31}, 1);
  add({2, 33}, 11);
  add({2, 1, 5}, 1);
  add({2, 3, 33}, 3);
  add({3, 4, 2, 3}, 2);
  add({0, 4, 3}, 2);
  add({2, 4, 0}, 2);
  add({17, 6, 129}, 3);
}

}  // namespace

std::vector<Case> norm_cases() {
  std::vector<Case> cases;
  add_rmsnorm(cases);
  add_batchnorm(cases);
  add_groupnorm(cases);
  return cases;
}

}  // namespace tapestry
