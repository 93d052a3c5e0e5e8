// Pooling: windows that touch, overlap and leave gaps, padding, dilation, and elements that no window sees.
#include "layers/pool.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

void add_1d(std::vector<Case>& cases, const Shape& x, const MaxPool1dOptions& o) {
  const std::string name = text_of(x, " size ", o.size, " stride ", o.stride, " padding ", o.padding);
  cases.push_back(row(text_of("max_pool1d ", name, " dilation ", o.dilation), {distinct(x)},
                      [o](const Var& v) { return max_pool1d(v, o); }));
  if (o.dilation > 1) return;
  for (const bool count : {true, false})
    cases.push_back(row("avg_pool1d " + name + (count ? "" : " without padding in the count"), {normal(x)},
                        [o, count](const Var& v) {
                          return avg_pool1d(v, {o.size, o.stride, o.padding, count});
                        }));
}

std::string text(const HeightWidth& p) { return text_of(p.h, "x", p.w); }

void add_2d(std::vector<Case>& cases, const Shape& x, const MaxPool2dOptions& o) {
  const std::string name = text_of(x, " size ", text(o.size), " stride ", text(o.stride), " padding ", text(o.padding));
  cases.push_back(row("max_pool2d " + name + " dilation " + text(o.dilation), {distinct(x)},
                      [o](const Var& v) { return max_pool2d(v, o); }));
  if (o.dilation.h > 1 || o.dilation.w > 1) return;
  for (const bool count : {true, false})
    cases.push_back(row("avg_pool2d " + name + (count ? "" : " without padding in the count"), {normal(x)},
                        [o, count](const Var& v) {
                          return avg_pool2d(v, {o.size, o.stride, o.padding, count});
                        }));
}

}  // namespace

std::vector<Case> pool_cases() {
  std::vector<Case> cases;
  add_1d(cases, {1, 1, 1}, {.size = 1});
  add_1d(cases, {2, 3, 31}, {.size = 2});
  add_1d(cases, {1, 2, 33}, {.size = 3, .stride = 1, .padding = 1});
  add_1d(cases, {2, 1, 33}, {.size = 5, .stride = 2, .padding = 2});
  add_1d(cases, {2, 1, 31}, {.size = 2, .stride = 3});
  add_1d(cases, {2, 1, 31}, {.size = 3, .stride = 2, .padding = 1, .dilation = 4});
  add_1d(cases, {0, 3, 5}, {.size = 2});
  add_1d(cases, {2, 0, 5}, {.size = 2});
  add_1d(cases, {3, 1, 257}, {.size = 7, .stride = 3, .padding = 3});
  add_2d(cases, {1, 1, 1, 1}, {.size = 1});
  add_2d(cases, {2, 2, 7, 5}, {.size = 2});
  add_2d(cases, {1, 1, 31, 33}, {.size = 3, .stride = 2, .padding = 1});
  add_2d(cases, {1, 2, 6, 7}, {.size = 3, .stride = 1, .padding = 1});
  add_2d(cases, {2, 1, 6, 9}, {.size = {2, 3}, .stride = {1, 2}, .padding = {1, 0}});
  add_2d(cases, {1, 1, 9, 11}, {.size = {3, 2}, .stride = 1, .padding = {1, 1}, .dilation = {2, 3}});
  add_2d(cases, {1, 1, 5, 5}, {.size = 1, .stride = 3});
  add_2d(cases, {0, 2, 4, 4}, {.size = 2});
  add_2d(cases, {1, 3, 43, 37}, {.size = {3, 5}, .stride = {2, 3}, .padding = {1, 2}});
  cases.push_back(
      gradcheck_case("MaxPool1d 3", MaxPool1d({.size = 3, .stride = 2, .padding = 1}), distinct({2, 3, 9})));
  cases.push_back(gradcheck_case("MaxPool2d 2", MaxPool2d({.size = 2}), distinct({2, 3, 6, 5})));
  cases.push_back(
      gradcheck_case("AvgPool1d 3", AvgPool1d({.size = 3, .stride = 2, .padding = 1}), distinct({2, 3, 9})));
  cases.push_back(gradcheck_case("AvgPool2d 2", AvgPool2d({.size = 2}), distinct({2, 3, 6, 5})));
  return cases;
}

}  // namespace tapestry
