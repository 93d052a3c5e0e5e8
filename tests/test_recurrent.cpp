// Recurrent cells against their formulas written out in scalars, gate by gate, in PyTorch's order.
#include "layers/recurrent.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/compare.h"

using namespace tapestry;

namespace {

constexpr std::int64_t kIn = 3, kHidden = 2, kBatch = 2;

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

// Entry (row, column) of x W + b.
double affine(const Tensor& x, const Linear& map, std::int64_t row, std::int64_t column) {
  const std::int64_t in = map.weight.shape()[0], out = map.weight.shape()[1];
  double sum = map.bias->value().at(column);
  for (std::int64_t i = 0; i < in; ++i) sum += x.at(row * in + i) * map.weight.value().at(i * out + column);
  return sum;
}

const Tensor x = random_normal({kBatch, kIn}, 1), h = random_normal({kBatch, kHidden}, 2),
             c = random_normal({kBatch, kHidden}, 3);

template <class Value>
void check_state(const Tensor& got, Value value) {
  REQUIRE(got.shape() == Shape{kBatch, kHidden});
  for (std::int64_t row = 0; row < kBatch; ++row)
    for (std::int64_t j = 0; j < kHidden; ++j)
      CHECK(got.at(row * kHidden + j) == doctest::Approx(value(row, j)).epsilon(1e-5));
}

}  // namespace

TEST_CASE("RnnCell") {
  Rng rng(1);
  const RnnCell cell({.in = kIn, .hidden = kHidden}, rng);
  check_state(cell(x, h).value(), [&](std::int64_t row, std::int64_t j) {
    return std::tanh(affine(x, cell.maps.input, row, j) + affine(h, cell.maps.state, row, j));
  });
}

TEST_CASE("GruCell: gates r, z, n") {
  Rng rng(1);
  const GruCell cell({.in = kIn, .hidden = kHidden}, rng);
  check_state(cell(x, h).value(), [&](std::int64_t row, std::int64_t j) {
    auto from_x = [&](std::int64_t gate) { return affine(x, cell.maps.input, row, gate * kHidden + j); };
    auto from_h = [&](std::int64_t gate) { return affine(h, cell.maps.state, row, gate * kHidden + j); };
    const double r = sigmoid_of(from_x(0) + from_h(0)), z = sigmoid_of(from_x(1) + from_h(1));
    const double n = std::tanh(from_x(2) + r * from_h(2));
    return (1 - z) * n + z * h.at(row * kHidden + j);
  });
}

TEST_CASE("LstmCell: gates i, f, g, o") {
  Rng rng(1);
  const LstmCell cell({.in = kIn, .hidden = kHidden}, rng);
  const LstmCell::State next = cell(x, {h, c});
  auto gate = [&](std::int64_t row, std::int64_t j, std::int64_t index) {
    return affine(x, cell.maps.input, row, index * kHidden + j) + affine(h, cell.maps.state, row, index * kHidden + j);
  };
  auto cell_state = [&](std::int64_t row, std::int64_t j) {
    return sigmoid_of(gate(row, j, 1)) * c.at(row * kHidden + j) +
           sigmoid_of(gate(row, j, 0)) * std::tanh(gate(row, j, 2));
  };
  check_state(next.c.value(), cell_state);
  check_state(next.h.value(), [&](std::int64_t row, std::int64_t j) {
    return sigmoid_of(gate(row, j, 3)) * std::tanh(cell_state(row, j));
  });
}

TEST_CASE("initial weights of cells are uniform within 1 / sqrt(hidden)") {
  Rng rng(1);
  GruCell cell({.in = 50, .hidden = 100}, rng);
  for (const NamedParameter& p : parameters(cell)) {
    CAPTURE(p.name);
    CHECK(max_abs(p.parameter->value()) <= 0.1);
    CHECK(max_abs(p.parameter->value()) > 0.09);
  }
}

TEST_CASE("what cells refuse") {
  Rng rng(1);
  CHECK_THROWS_AS(RnnCell({.in = 0, .hidden = 2}, rng), Error);
  const LstmCell cell({.in = kIn, .hidden = kHidden}, rng);
  CHECK_THROWS_WITH_AS(cell(x, {h, zeros({kBatch, 5})}),
                       "cell: x must be [B, in] and the state [B, 2], not [2, 3] and [2, 5]", Error);
  CHECK_THROWS_AS(cell(zeros({kIn}), {h, c}), Error);
}
