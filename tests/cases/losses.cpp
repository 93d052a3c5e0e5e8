// Losses of two tensors of one shape, with every reduction.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

constexpr LossReduction kReductions[] = {LossReduction::mean, LossReduction::sum, LossReduction::none};

std::string name_of(LossReduction reduction) {
  return reduction == LossReduction::mean ? " mean" : reduction == LossReduction::sum ? " sum" : " none";
}

// Rows of f(x, target, reduction). same_input: f(x, x) is smooth and defined.
template <class F>
void add_loss(std::vector<Case>& cases, const std::string& name, Tensor (*target)(const Shape&), bool same_input, F f) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{31}, Shape{3, 11}, Shape{2, 0}, Shape{3, 67}, Shape{7, 2003}})
    for (const LossReduction reduction : kReductions) {
      if (shape.numel() == 0 && reduction == LossReduction::mean) continue;
      // The sum over thousands of elements rounds away what one of them changes.
      if (shape.numel() > 1000 && reduction != LossReduction::none) continue;
      cases.push_back(row(text_of(name, " ", shape, name_of(reduction)), {normal(shape, 1), target(shape)},
                          [f, reduction](const Var& x, const Var& t) { return f(x, t, reduction); }));
      cases.back().same_input = same_input;
    }
}

// Beyond 6 on either side, where no x of the rows reaches: away from the corner of l1 at x = t.
Tensor apart(const Shape& shape) {
  Tensor t = away_from_zero(shape, 2);
  double* p = t.mutable_data<double>();
  for (std::int64_t i = 0; i < t.numel(); ++i) p[i] += p[i] < 0 ? -6 : 6;
  return t;
}
Tensor plain(const Shape& shape) { return normal(shape, 2); }
// |x - t| in (0.05, 0.25), (0.35, 0.9) and (1.1, 3) in turn: away from the corners of huber's derivative.
Tensor around(const Shape& shape) {
  Tensor t = normal(shape, 1);
  const Tensor u = uniform(shape, 0, 1, 2);
  double* p = t.mutable_data<double>();
  constexpr double kLow[] = {0.05, 0.35, 1.1}, kHigh[] = {0.25, 0.9, 3};
  for (std::int64_t i = 0; i < t.numel(); ++i)
    p[i] += (i % 2 ? -1 : 1) * (kLow[i % 3] + (kHigh[i % 3] - kLow[i % 3]) * u.at(i));
  return t;
}
Tensor probability(const Shape& shape) { return uniform(shape, 0.1, 0.9, 2); }

}  // namespace

std::vector<Case> loss_cases() {
  std::vector<Case> cases;
  add_loss(cases, "mse", plain, true, [](const Var& x, const Var& t, LossReduction r) { return mse(x, t, r); });
  add_loss(cases, "l1", apart, false, [](const Var& x, const Var& t, LossReduction r) { return l1(x, t, r); });
  add_loss(cases, "huber", around, true, [](const Var& x, const Var& t, LossReduction r) { return huber(x, t, 1, r); });
  add_loss(cases, "huber delta 0.3", around, true,
           [](const Var& x, const Var& t, LossReduction r) { return huber(x, t, 0.3, r); });
  add_loss(cases, "bce_with_logits", probability, true,
           [](const Var& x, const Var& t, LossReduction r) { return bce_with_logits(x, t, {}, r); });
  add_loss(cases, "kl_div", probability, false,
           [](const Var& x, const Var& t, LossReduction r) { return kl_div(0.1 * x, t, r); });

  for (const Shape& weight : {Shape{}, Shape{5}, Shape{3, 1}})
    cases.push_back(row(text_of("bce_with_logits [3, 5] pos_weight ", weight), {normal({3, 5}, 1), probability({3, 5})},
                        [w = positive(weight, 3)](const Var& x, const Var& t) {
                          return bce_with_logits(x, t, w.to(accumulate_dtype(x.dtype())));
                        }));
  return cases;
}

}  // namespace tapestry
