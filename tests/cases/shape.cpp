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

void add_stack(std::vector<Case>& cases) {
  struct Parts {
    std::size_t count;
    Shape shape;
    int axis;
  };
  for (const Parts& p : {Parts{1, {1}, 0}, Parts{3, {}, 0}, Parts{2, {31}, 1}, Parts{3, {2, 3}, 1},
                         Parts{2, {2, 3}, -1}, Parts{17, {5}, 0}, Parts{2, {0, 3}, 1}, Parts{2, {33, 129}, 1}}) {
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < p.count; ++i) inputs.push_back(normal(p.shape, i));
    cases.push_back(row(text_of("stack ", p.count, " parts of ", p.shape, " axis ", p.axis), inputs,
                        [axis = p.axis](std::span<const Var> x) { return stack(x, axis); }));
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

  add("slice axis 0 [0, 31) step 2 ", {31}, [](const Var& x) { return slice(x, 0, 0, 31, 2); });
  add("slice axis 1 [1, 4) step 3 ", {2, 5, 3}, [](const Var& x) { return slice(x, 1, 1, 4, 3); });
  add("slice axis 0 30 to -1 step -1 ", {31}, [](const Var& x) { return slice(x, 0, 30, -1, -1); });
  add("slice axis -1 4 to 0 step -2 ", {3, 5}, [](const Var& x) { return slice(x, -1, 4, 0, -2); });
  add("slice axis 0 6 to -1 step -3 ", {7, 33}, [](const Var& x) { return slice(x, 0, 6, -1, -3); });
  add("slice axis 0 0 to 0 step -1 ", {3}, [](const Var& x) { return slice(x, 0, 0, 0, -1); });

  add("flip 0 ", {1}, [](const Var& x) { return flip(x, {0}); });
  add("flip 0 ", {33}, [](const Var& x) { return flip(x, {0}); });
  add("flip 1 ", {2, 3, 5}, [](const Var& x) { return flip(x, {1}); });
  add("flip 0,-1 ", {3, 1, 31}, [](const Var& x) { return flip(x, {0, -1}); });
  add("flip none ", {2, 3}, [](const Var& x) { return flip(x, {}); });
  add("flip 0,1 ", {129, 257}, [](const Var& x) { return flip(x, {0, 1}); });

  add("expand to [1] ", {}, [](const Var& x) { return expand(x, {1}); });
  add("expand to [31] ", {1}, [](const Var& x) { return expand(x, {31}); });
  add("expand to [3, 33] ", {33}, [](const Var& x) { return expand(x, {3, 33}); });
  add("expand to [2, 3, 4] ", {3, 1}, [](const Var& x) { return expand(x, {2, 3, 4}); });
  add("expand to [2, 3] ", {2, 3}, [](const Var& x) { return expand(x, {2, 3}); });
  add("expand to [1, 2, 3] ", {2, 3}, [](const Var& x) { return expand(x, {1, 2, 3}); });
  add("expand to [3, 129] ", {129}, [](const Var& x) { return expand(x, {3, 129}); });
  add("expand to [0, 3] ", {1, 3}, [](const Var& x) { return expand(x, {0, 3}); });
  add("expand to [17, 65, 9] ", {17, 1, 9}, [](const Var& x) { return expand(x, {17, 65, 9}); });

  add("pad axis 0 by 0, 0 ", {1}, [](const Var& x) { return pad(x, 0, 0, 0); });
  add("pad axis 0 by 2, 1 ", {31}, [](const Var& x) { return pad(x, 0, 2, 1, 1.5); });
  add("pad axis 1 by 0, 3 ", {2, 3, 4}, [](const Var& x) { return pad(x, 1, 0, 3); });
  add("pad axis 0 by 1, 1 ", {0, 3}, [](const Var& x) { return pad(x, 0, 1, 1, -1); });
  add("pad axis -1 by 5, 7 ", {65, 129}, [](const Var& x) { return pad(x, -1, 5, 7); });

  add("repeat_interleave 3 on axis 0 ", {1}, [](const Var& x) { return repeat_interleave(x, 3, 0); });
  add("repeat_interleave 2 on axis 0 ", {31}, [](const Var& x) { return repeat_interleave(x, 2, 0); });
  add("repeat_interleave 3 on axis 1 ", {2, 3, 5}, [](const Var& x) { return repeat_interleave(x, 3, 1); });
  add("repeat_interleave 1 on axis -1 ", {2, 3}, [](const Var& x) { return repeat_interleave(x, 1, -1); });
  add("repeat_interleave 0 on axis 0 ", {2, 3}, [](const Var& x) { return repeat_interleave(x, 0, 0); });
  add("repeat_interleave 4 on axis 0 ", {33, 129}, [](const Var& x) { return repeat_interleave(x, 4, 0); });

  add_concat(cases);
  add_stack(cases);

  add("split axis 0 at 13 ", {31}, [](const Var& x) { return split(x, 0, 13); });
  add("split axis 1 at 1 ", {2, 4, 3}, [](const Var& x) { return split(x, 1, 1); });
  add("split axis 1 at 3 ", {1, 5}, [](const Var& x) { return split(x, 1, 3); });
  add("split axis -1 at 0 ", {2, 3}, [](const Var& x) { return split(x, -1, 0); });
  add("split axis 0 at 1, first part unused ", {3, 5}, [](const Var& x) { return split(x, 0, 1)[1]; });
  add("split axis 1 at 128 ", {33, 257}, [](const Var& x) { return split(x, 1, 128); });
  add("split axis 0 in 1 ", {31}, [](const Var& x) { return split(x, 0, {31}); });
  add("split axis 1 in 2,0,3 ", {2, 5, 3}, [](const Var& x) { return split(x, 1, {2, 0, 3}); });
  add("split axis -1 in 10 parts, 3 used ", {2, 33}, [](const Var& x) {
    const auto parts = split(x, -1, {1, 2, 3, 4, 5, 6, 7, 3, 1, 1});
    return std::array{parts[1], parts[6], parts[9]};
  });
  add("chunk 1 axis 0 ", {1}, [](const Var& x) { return chunk<1>(x, 0); });
  add("chunk 3 axis 0 ", {33}, [](const Var& x) { return chunk<3>(x, 0); });
  add("chunk 3 axis -1 ", {2, 3, 6}, [](const Var& x) { return chunk<3>(x, -1); });
  add("chunk 2 axis 1 ", {2, 0}, [](const Var& x) { return chunk<2>(x, 1); });
  add("chunk 12 axis 1 ", {31, 132}, [](const Var& x) { return chunk<12>(x, 1); });
  return cases;
}

}  // namespace tapestry
