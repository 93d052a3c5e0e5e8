// Pointwise kernels of two inputs: broadcasting, forward and backward, against plain loops.
#include <string>

#include "core/kernels/pointwise_binary_formulas.h"
#include "core/kernels/strided_walk.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

struct BinaryOp {
  std::string name;
  void (*forward)(const Tensor&, const Tensor&, Tensor&);
  void (*backward)(const Tensor&, const Tensor&, const Tensor&, const Shape&, const Shape&, Grad, Grad);
  formula::Reads da_reads, db_reads;
};
const std::vector<BinaryOp> kBinaryOps{
#define TAP_ROW(name, Formula) \
  {#name, cpu::name##_forward, cpu::name##_backward, formula::Formula::kDaReads, formula::Formula::kDbReads},
    TAP_BINARY_OPS(TAP_ROW)
#undef TAP_ROW
};

// {value, d/da, d/db}
std::array<double, 3> reference(const std::string& name, double a, double b) {
  if (name == "add") return {a + b, 1, 1};
  if (name == "sub") return {a - b, 1, -1};
  if (name == "mul") return {a * b, b, a};
  if (name == "minimum") return {std::min(a, b), a < b ? 1.0 : 0.0, a < b ? 0.0 : 1.0};
  if (name == "maximum") return {std::max(a, b), a > b ? 1.0 : 0.0, a > b ? 0.0 : 1.0};
  if (name == "pow") return {std::pow(a, b), b * std::pow(a, b - 1), a < 0 ? kNaN : std::pow(a, b) * std::log(a)};
  REQUIRE(name == "div");
  return {a / b, 1 / b, -a / (b * b)};
}

Tensor away_from_zero(const Shape& shape, DType dtype, std::uint64_t stream) {
  Tensor x = random_normal(shape, DType::f64, stream);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    double& value = x.mutable_data<double>()[i];
    value += value < 0 ? -0.5 : 0.5;
  }
  return x.to(dtype);
}

// One op on one pair of shapes against a loop over the elements of the result.
void check_broadcast(const BinaryOp& op, const Shape& a_shape, const Shape& b_shape, DType dtype, bool second) {
  CAPTURE(op.name);
  CAPTURE(to_text(a_shape));
  CAPTURE(to_text(b_shape));
  const Shape shape = broadcast("test", a_shape, b_shape);
  Tensor a = away_from_zero(a_shape, dtype, 1);
  const Tensor b = away_from_zero(b_shape, dtype, 2);
  if (op.name == "pow") {
    Tensor base = empty_like(a);
    cpu::abs_forward(a, base);
    a = base;
  }
  const Tensor dy = random_normal(shape, dtype, 3);
  const Strides a_strides = broadcast_strides(a_shape, shape), b_strides = broadcast_strides(b_shape, shape);
  std::vector<double> y(static_cast<std::size_t>(shape.numel()));
  std::vector<double> da(static_cast<std::size_t>(a.numel())), db(static_cast<std::size_t>(b.numel()));
  for (std::int64_t flat = 0; flat < shape.numel(); ++flat) {
    std::int64_t rest = flat, i = 0, j = 0;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      i += rest % shape[axis] * a_strides[axis];
      j += rest % shape[axis] * b_strides[axis];
      rest /= shape[axis];
    }
    const auto [value, to_a, to_b] = reference(op.name, a.at(i), b.at(j));
    y[static_cast<std::size_t>(flat)] = value;
    da[static_cast<std::size_t>(i)] += dy.at(flat) * to_a;
    db[static_cast<std::size_t>(j)] += dy.at(flat) * to_b;
  }
  const double tolerance = dtype == DType::f32 ? 3e-6 : 1e-13;
  Tensor result = full(shape, kNaN, dtype);
  op.forward(a, b, result);
  check_close(result, y, tolerance);

  Target to_a(a_shape, dtype, second), to_b(b_shape, dtype, second);
  op.backward(dy, a, b, a_shape, b_shape, to_a.grad(), to_b.grad());
  to_a.check(da, 10 * tolerance);
  to_b.check(db, 10 * tolerance);

  // One gradient alone, with an empty handle for what it does not read.
  Target only_a(a_shape, dtype, second), only_b(b_shape, dtype, second);
  op.backward(dy, op.da_reads.a ? a : Tensor(), op.da_reads.b ? b : Tensor(), a_shape, b_shape, only_a.grad(), Grad());
  op.backward(dy, op.db_reads.a ? a : Tensor(), op.db_reads.b ? b : Tensor(), a_shape, b_shape, Grad(), only_b.grad());
  CHECK(same_bits(only_a.tensor(), to_a.tensor()));
  CHECK(same_bits(only_b.tensor(), to_b.tensor()));
}

}  // namespace

TEST_CASE("G02 broadcasting, forward and backward, against plain loops") {
  const std::vector<std::pair<Shape, Shape>> pairs{
      {{}, {}},
      {{1}, {}},
      {{7}, {}},
      {{33}, {33}},
      {{3, 17}, {3, 17}},
      {{5, 33}, {33}},
      {{5, 4}, {1}},
      {{4, 1}, {1, 4}},
      {{2, 1}, {1, 3}},
      {{5, 1}, {5, 33}},
      {{1, 33}, {5, 1}},
      {{0}, {1}},
      {{0, 3}, {3}},
      {{2, 0}, {2, 1}},
      {{4, 3, 19}, {3, 1}},
      {{4, 1, 19}, {3, 1}},
      {{2, 3, 4, 5}, {3, 1, 5}},
      {{2, 1, 4, 1}, {1, 3, 1, 5}},
      {{3, 100}, {100}},
      {{6, 1, 1}, {1, 1, 7}},
      {{2, 3, 1, 2, 1, 3}, {1, 3, 2, 1, 2, 3}},
      {{1, 1}, {1}},
      {{70, 129}, {70, 1}},
  };
  for (const BinaryOp& op : kBinaryOps)
    for (const auto& [a, b] : pairs)
      for (DType dtype : {DType::f32, DType::f64})
        for (bool second : {false, true}) {
          check_broadcast(op, a, b, dtype, second);
          check_broadcast(op, b, a, dtype, second);
        }
}

TEST_CASE("G02 both operands broadcast at once") {
  Tensor y = empty({2, 3});
  cpu::add_forward(tensor({1, 2}, {2, 1}), tensor({10, 20, 30}, {1, 3}), y);
  check_close(y, {11, 21, 31, 12, 22, 32}, 0);
  Target da({2, 1}, DType::f32, false), db({1, 3}, DType::f32, false);
  cpu::add_backward(full({2, 3}, 1), {}, {}, {2, 1}, {1, 3}, da.grad(), db.grad());
  da.check({3, 3}, 0);
  db.check({2, 2, 2}, 0);
}

TEST_CASE("shapes that do not fit throw") {
  Tensor y = empty({2, 3});
  CHECK_THROWS_AS(cpu::add_forward(zeros({2, 3}), zeros({2}), y), Error);
  CHECK_THROWS_AS(cpu::add_forward(zeros({3}), zeros({3}), y), Error);
  CHECK_THROWS_AS(cpu::exp_forward(zeros({3}), y), Error);
  Tensor ids = zeros({2}, DType::i64);
  CHECK_THROWS_AS(cpu::exp_forward(ids, ids), Error);
}

TEST_CASE("binary kernels give the same bits for any number of threads") {
  const Shape shape{301, 333};
  const Tensor x = random_normal(shape, DType::f32, 1), dy = random_normal(shape, DType::f32, 2);
  const Tensor row = away_from_zero({333}, DType::f32, 3), column = away_from_zero({301, 1}, DType::f32, 4);
  check_same_bits_for_any_threads([&] {
    std::vector<Tensor> results;
    for (const Tensor& other : {row, column}) {
      Tensor y = empty(shape);
      cpu::div_forward(x, other, y);
      Target da(shape, DType::f32, true), db(other.shape(), DType::f32, true);
      cpu::div_backward(dy, x, other, shape, other.shape(), da.grad(), db.grad());
      results.insert(results.end(), {y, da.tensor(), db.tensor()});
    }
    return results;
  });
}
