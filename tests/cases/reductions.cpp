// Sums and means over sets of axes.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

std::string axes_text(const Axes& axes, bool keepdim) {
  std::string text;
  for (int axis : axes) text += text_of(text.empty() ? " axes " : ",", axis);
  return text + (keepdim ? " keepdim" : "");
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
  }
  cases.push_back(row("sum [0, 3] over nothing", {normal({0, 3})}, [](const Var& x) { return sum(x, {0}); }));
  return cases;
}

}  // namespace tapestry
