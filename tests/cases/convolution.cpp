// unfold, conv1d, conv2d and their layers: strides, paddings, dilations and groups, with and without bias.
#include "layers/convolution.h"
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

void add_unfold(std::vector<Case>& cases) {
  auto add = [&](const Shape& s, HeightWidth size, const std::string& note = "", const UnfoldOptions& o = {}) {
    cases.push_back(row(text_of("unfold ", s, " by ", size.h, "x", size.w, note), {normal(s)},
                        [=](const Var& x) { return unfold(x, size, o); }));
  };
  add({1, 1, 1, 1}, 1);
  add({2, 3, 4, 5}, {2, 3});
  add({1, 2, 5, 4}, 3, " stride 2 padding 1", {.stride = 2, .padding = 1});
  add({2, 1, 6, 7}, {3, 2}, " all options", {.stride = {1, 3}, .padding = {2, 1}, .dilation = {3, 2}});
  add({1, 1, 1, 31}, {1, 3}, " padding 0, 4", {.padding = {0, 4}});
  add({1, 1, 33, 1}, {5, 1}, " stride 3", {.stride = {3, 1}});
  add({0, 2, 3, 3}, 2);
  add({1, 1, 2, 2}, 2, " padding 3", {.padding = 3});  // windows of padding alone
  add({1, 2, 23, 37}, 3, " dilation 2", {.dilation = 2});
}

std::vector<Tensor> operands(const Shape& x, const Shape& w, bool bias) {
  std::vector<Tensor> inputs{normal(x, 1), normal(w, 2)};
  if (bias) inputs.push_back(normal({w[0]}, 3));
  return inputs;
}

void add_conv1d(std::vector<Case>& cases) {
  auto add = [&](const Shape& x, const Shape& w, bool bias, const std::string& note = "", const Conv1dOptions& o = {}) {
    cases.push_back(row(text_of("conv1d ", x, " ", w, bias ? " bias" : "", note), operands(x, w, bias),
                        [o](std::span<const Var> v) { return conv1d(v[0], v[1], v.size() > 2 ? v[2] : Var(), o); }));
  };
  for (const bool bias : {false, true}) {
    add({1, 1, 1}, {1, 1, 1}, bias);
    add({2, 3, 7}, {4, 3, 3}, bias, " padding 1", {.padding = 1});
    add({3, 4, 9}, {6, 2, 2}, bias, " all options", {.stride = 2, .padding = 3, .dilation = 3, .groups = 2});
    add({0, 2, 5}, {3, 2, 3}, bias);
  }
  add({2, 1, 31}, {1, 1, 5}, true, " stride 3", {.stride = 3});
  add({1, 31, 33}, {33, 31, 1}, true);
  add({1, 33, 4}, {33, 1, 3}, true, " depthwise", {.padding = 1, .groups = 33});
  add({2, 7, 211}, {5, 7, 9}, true, " padding 4", {.padding = 4});
}

void add_conv2d(std::vector<Case>& cases) {
  auto add = [&](const Shape& x, const Shape& w, bool bias, const std::string& note = "", const Conv2dOptions& o = {}) {
    cases.push_back(row(text_of("conv2d ", x, " ", w, bias ? " bias" : "", note), operands(x, w, bias),
                        [o](std::span<const Var> v) { return conv2d(v[0], v[1], v.size() > 2 ? v[2] : Var(), o); }));
  };
  for (const bool bias : {false, true}) {
    add({1, 1, 1, 1}, {1, 1, 1, 1}, bias);
    add({2, 2, 4, 5}, {3, 2, 3, 2}, bias);
    add({2, 3, 4, 3}, {2, 3, 1, 1}, bias);
    add({1, 2, 5, 6}, {4, 2, 3, 3}, bias, " padding 1", {.padding = 1});
    add({2, 4, 6, 5}, {2, 2, 2, 3}, bias, " all options",
        {.stride = {2, 1}, .padding = {1, 2}, .dilation = {3, 2}, .groups = 2});
    add({0, 2, 3, 3}, {3, 2, 2, 2}, bias);
  }
  add({1, 3, 5, 5}, {3, 1, 3, 3}, true, " depthwise", {.padding = 1, .groups = 3});
  add({1, 2, 3, 3}, {6, 1, 1, 1}, true, " groups 2", {.groups = 2});
  add({2, 2, 3, 4}, {2, 2, 1, 1}, true, " stride 2", {.stride = 2});
  add({1, 2, 3, 4}, {2, 2, 1, 1}, true, " padding 1", {.padding = 1});
  add({3, 2, 3, 4}, {5, 2, 3, 4}, true, " whole image");
  add({2, 1, 31, 2}, {3, 1, 5, 1}, false, " stride 3", {.stride = {3, 1}});
  add({1, 33, 3, 2}, {31, 33, 2, 2}, true);
  add({3, 5, 23, 19}, {7, 5, 3, 3}, true, " padding 1", {.padding = 1});
  add({1, 37, 13, 11}, {5, 37, 3, 3}, true, " stride 2 padding 1", {.stride = 2, .padding = 1});
}

void add_layers(std::vector<Case>& cases) {
  Rng rng(case_key(5, 0).seed);
  auto add = [&](const std::string& name, auto layer, const Shape& x) {
    cases.push_back(gradcheck_case(name, std::move(layer), normal(x)));
  };
  add("Conv1d 1 to 1", Conv1d({.in = 1, .out = 1, .size = 1}, rng), {1, 1, 1});
  add("Conv1d 3 to 4", Conv1d({.in = 3, .out = 4, .size = 3, .padding = 1}, rng), {2, 3, 31});
  add("Conv1d 4 to 2 without bias, groups 2",
      Conv1d({.in = 4, .out = 2, .size = 2, .stride = 2, .dilation = 3, .groups = 2, .bias = false}, rng), {3, 4, 9});
  add("Conv2d 1 to 1", Conv2d({.in = 1, .out = 1, .size = 1}, rng), {1, 1, 1, 1});
  add("Conv2d 3 to 5", Conv2d({.in = 3, .out = 5, .size = {3, 2}, .padding = {1, 0}}, rng), {2, 3, 5, 4});
  add("Conv2d 4 to 6 without bias, groups 2",
      Conv2d({.in = 4, .out = 6, .size = 2, .stride = {2, 1}, .dilation = 2, .groups = 2, .bias = false}, rng),
      {1, 4, 5, 6});
  add("Conv2d 31 to 33", Conv2d({.in = 31, .out = 33, .size = 1}, rng), {1, 31, 3, 2});
}

}  // namespace

std::vector<Case> convolution_cases() {
  std::vector<Case> cases;
  add_unfold(cases);
  add_conv1d(cases);
  add_conv2d(cases);
  add_layers(cases);
  return cases;
}

}  // namespace tapestry
