// Functions that move elements. Their gradients are exact, so f32 results equal f64 ones up to rounding of the values.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

void add_concat(std::vector<Case>& cases) {
  struct Parts {
    std::vector<Shape> shapes;
    int axis;
  };
  const Parts all[] = {
      {{{1}}, 0},
      {{{31}, {2}, {33}}, 0},
      {{{2, 3}, {2, 3}}, 0},
      {{{2, 3}, {2, 1}, {2, 5}}, 1},
      {{{2, 3, 2}, {2, 0, 2}, {2, 4, 2}}, -2},
      {{{2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3},
        {2, 3}},
       1},
      {{{41, 129}, {41, 128}}, 1},
  };
  for (const Parts& p : all) {
    std::vector<Tensor> inputs;
    for (const Shape& s : p.shapes) inputs.push_back(normal(s, inputs.size()));
    cases.push_back(row(text_of("concat ", p.shapes.size(), " parts from ", p.shapes[0], " axis ", p.axis), inputs,
                        [axis = p.axis](std::span<const Var> x) { return tapestry::concat(x, axis); }));
  }
}

}  // namespace

std::vector<Case> shape_cases() {
  std::vector<Case> cases;
  auto add = [&](const std::string& name, const Shape& shape, auto f) {
    cases.push_back(row(name + to_text(shape), {normal(shape)}, f));
  };
  add("reshape to [6] ", {2, 3}, [](const Var& x) { return reshape(x, {6}); });
  add("reshape to [3, -1] ", {2, 3, 5}, [](const Var& x) { return reshape(x, {3, -1}); });
  add("reshape to [] ", {1}, [](const Var& x) { return reshape(x, {}); });
  add("reshape to [-1, 31] ", {31}, [](const Var& x) { return reshape(x, {-1, 31}); });
  add("reshape to [257, 129] ", {129, 257}, [](const Var& x) { return reshape(x, {257, 129}); });

  add("permute 0 ", {33}, [](const Var& x) { return permute(x, {0}); });
  add("permute 1,0 ", {3, 11}, [](const Var& x) { return permute(x, {1, 0}); });
  add("permute 2,0,1 ", {2, 3, 5}, [](const Var& x) { return permute(x, {2, 0, 1}); });
  add("permute 0,2,1,3 ", {2, 3, 2, 3}, [](const Var& x) { return permute(x, {0, 2, 1, 3}); });
  add("permute -1,0,1 ", {2, 1, 31}, [](const Var& x) { return permute(x, {-1, 0, 1}); });
  add("permute 1,2,0 ", {17, 33, 65}, [](const Var& x) { return permute(x, {1, 2, 0}); });

  add("transpose ", {1, 31}, [](const Var& x) { return transpose(x); });
  add("transpose ", {2, 3, 5}, [](const Var& x) { return transpose(x); });
  add("transpose 0,2 ", {2, 3, 5}, [](const Var& x) { return transpose(x, 0, 2); });
  add("transpose 1,1 ", {2, 3}, [](const Var& x) { return transpose(x, 1, 1); });
  add("transpose ", {129, 257}, [](const Var& x) { return transpose(x); });

  add("slice axis 0 [0, 1) ", {1}, [](const Var& x) { return slice(x, 0, 0, 1); });
  add("slice axis 0 [3, 30) ", {31}, [](const Var& x) { return slice(x, 0, 3, 30); });
  add("slice axis 1 [1, 3) ", {2, 4, 3}, [](const Var& x) { return slice(x, 1, 1, 3); });
  add("slice axis -1 [0, 33) ", {2, 33}, [](const Var& x) { return slice(x, -1, 0, 33); });
  add("slice axis 1 [2, 2) ", {2, 4}, [](const Var& x) { return slice(x, 1, 2, 2); });
  add("slice axis 1 [5, 250) ", {129, 257}, [](const Var& x) { return slice(x, 1, 5, 250); });

  add_concat(cases);

  add("split axis 0 at 13 ", {31}, [](const Var& x) { return split(x, 0, 13); });
  add("split axis 1 at 1 ", {2, 4, 3}, [](const Var& x) { return split(x, 1, 1); });
  add("split axis -1 at 0 ", {2, 3}, [](const Var& x) { return split(x, -1, 0); });
  add("split axis 0 at 1, first part unused ", {3, 5}, [](const Var& x) { return split(x, 0, 1)[1]; });
  add("split axis 1 at 128 ", {33, 257}, [](const Var& x) { return split(x, 1, 128); });
  return cases;
}

}  // namespace tapestry
