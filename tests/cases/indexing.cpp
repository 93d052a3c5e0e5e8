// Functions that choose elements by an index, with repeated and missing ones, and triangles of matrices.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

void add_elements(std::vector<Case>& cases, const Shape& x, int axis, const Shape& chosen, DType dtype = DType::i64) {
  const Tensor index = ids(chosen, x[axis], 1, dtype);
  const std::string name = text_of(x, " axis ", axis, " ", chosen, " of ", dtype);
  cases.push_back(row("gather " + name, {normal(x)}, [=](const Var& v) { return gather(v, axis, index); }));
  cases.push_back(row("scatter_add " + name, {normal(x), normal(chosen, 1)},
                      [=](const Var& v, const Var& source) { return scatter_add(v, axis, index, source); }));
}
// The chosen have x's shape, with `count` along the axis.
void add_elements(std::vector<Case>& cases, const Shape& x, int axis, std::int64_t count, DType dtype = DType::i64) {
  add_elements(cases, x, axis, x.with(axis, count), dtype);
}

void add_select(std::vector<Case>& cases, const Shape& x, int axis, std::int64_t count, DType dtype = DType::i64) {
  const Tensor index = ids({count}, x[axis], 2, dtype);
  cases.push_back(row(text_of("index_select ", x, " axis ", axis, " ", count, " of ", dtype), {normal(x)},
                      [=](const Var& v) { return index_select(v, axis, index); }));
}

void add_triangles(std::vector<Case>& cases, const Shape& x, std::int64_t diagonal) {
  const std::string name = text_of(x, " diagonal ", diagonal);
  cases.push_back(row("tril " + name, {normal(x)}, [=](const Var& v) { return tril(v, diagonal); }));
  cases.push_back(row("triu " + name, {normal(x)}, [=](const Var& v) { return triu(v, diagonal); }));
}

}  // namespace

std::vector<Case> indexing_cases() {
  std::vector<Case> cases;
  add_elements(cases, {1}, 0, 1);
  add_elements(cases, {31}, 0, 33, DType::i32);
  add_elements(cases, {3, 5}, 0, 4);
  add_elements(cases, {3, 5}, 1, 7, DType::i32);
  add_elements(cases, {2, 3, 4}, 1, 3);
  add_elements(cases, {2, 3}, 1, 0);
  add_elements(cases, {0, 3}, 1, 2);
  add_elements(cases, {67, 129}, -2, 101);
  add_elements(cases, {3, 5}, 0, Shape{4, 2});
  add_elements(cases, {31, 33}, 1, Shape{17, 7}, DType::i32);
  add_elements(cases, {3, 2, 4, 5}, 1, Shape{2, 3, 3, 2});
  add_elements(cases, {3, 5}, 1, Shape{0, 2});
  add_select(cases, {1}, 0, 1);
  add_select(cases, {31}, 0, 33, DType::i32);
  add_select(cases, {2, 3, 4}, 1, 5);
  add_select(cases, {3, 5}, -1, 2, DType::i32);
  add_select(cases, {2, 3}, 0, 0);
  add_select(cases, {3, 0}, 0, 2);
  add_select(cases, {67, 129}, 0, 101);
  for (const std::int64_t diagonal : {-5, -1, 0, 1, 2, 7}) add_triangles(cases, {3, 5}, diagonal);
  add_triangles(cases, {1, 1}, 0);
  add_triangles(cases, {2, 33, 31}, 0);
  add_triangles(cases, {2, 0, 3}, 0);
  add_triangles(cases, {129, 257}, 3);
  // The ids have no gradient; what is multiplied by them has.
  cases.push_back(row("one_hot of [2, 3] in 4 classes", {normal({2, 3, 4})},
                      [index = ids({2, 3}, 4)](const Var& v) { return v * Var(one_hot(index, 4, v.dtype())); }));
  return cases;
}

}  // namespace tapestry
