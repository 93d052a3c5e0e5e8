// Recurrent cells against their formulas written out in scalars, gate by gate, in PyTorch's order; the fused gates
// against their composition of pointwise functions; what cells record, allocate and learn.
#include "layers/recurrent.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "autograd/ops.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "optim/adam.h"
#include "tests/allocation_counter.h"
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

// What the fused gates replace.
Var composed_gru(const Var& from_input, const Var& from_state, const Var& state) {
  const auto [input_reset, input_keep, input_fresh] = chunk<3>(from_input, -1);
  const auto [state_reset, state_keep, state_fresh] = chunk<3>(from_state, -1);
  const Var reset = sigmoid(input_reset + state_reset), keep = sigmoid(input_keep + state_keep);
  const Var fresh = tanh(input_fresh + reset * state_fresh);
  return (1 - keep) * fresh + keep * state;
}
std::array<Var, 3> composed_lstm(const Var& from_input, const Var& from_state, const Var& state) {
  const auto [input, forget, fresh, output] = chunk<4>(from_input + from_state, -1);
  const Var next = sigmoid(forget) * state + sigmoid(input) * tanh(fresh), o = sigmoid(output);
  return {o * tanh(next), next, o};
}

// The maps of `gates` gates and a state; what f makes of them, and the gradients of the three.
struct Inputs {
  Tensor from_input, from_state, state;
};
Inputs random_inputs(const Shape& state, std::int64_t gates) {
  const Shape maps = state.with_back(gates * state.back());
  return {random_normal(maps, 1), random_normal(maps, 2), random_normal(state, 3)};
}
template <class F>
std::vector<Tensor> value_and_gradients(const Inputs& in, F&& f) {
  Tape tape;
  const Var a = tape.watch(in.from_input), b = tape.watch(in.from_state), s = tape.watch(in.state);
  const Var y = f(a, b, s);
  tape.backward(y, random_normal(y.shape(), 4));
  return {y.value(), tape.grad(a), tape.grad(b), tape.grad(s)};
}
void check_close(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    if (expected[i].numel() == 0)
      CHECK(got[i].shape() == expected[i].shape());
    else
      CHECK(relative_error(got[i], expected[i]) < 2e-6);
  }
}

// The last h of a cell that starts with zeros and gets `input(t)` at step t.
template <class Cell, class Input>
Var unroll(const Cell& cell, std::int64_t steps, Input input) {
  const Tensor zero = zeros({input(0).shape()[0], cell.maps.hidden()});
  if constexpr (std::is_same_v<Cell, LstmCell>) {
    LstmCell::State state{zero, zero};
    for (std::int64_t t = 0; t < steps; ++t) state = cell(input(t), state);
    return state.h;
  } else {
    Var state = zero;
    for (std::int64_t t = 0; t < steps; ++t) state = cell(input(t), state);
    return state;
  }
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

TEST_CASE("fused gates equal their composition") {
  for (const Shape& state : {Shape{1, 1}, Shape{3, 31}, Shape{2, 33}, Shape{0, 4}, Shape{2, 3, 5}, Shape{67, 129}}) {
    CAPTURE(state);
    const Inputs gru = random_inputs(state, 3), lstm = random_inputs(state, 4);
    check_close(value_and_gradients(gru, gru_gates), value_and_gradients(gru, composed_gru));
    for (const std::size_t used : {0, 1, 2}) {
      CAPTURE(used);
      check_close(value_and_gradients(lstm, [&](auto&... in) { return lstm_gates(in...)[used]; }),
                  value_and_gradients(lstm, [&](auto&... in) { return composed_lstm(in...)[used]; }));
    }
    auto all_used = [](const std::array<Var, 3>& y) { return y[0] * 2.0 + y[1] * y[2]; };
    check_close(value_and_gradients(lstm, [&](auto&... in) { return all_used(lstm_gates(in...)); }),
                value_and_gradients(lstm, [&](auto&... in) { return all_used(composed_lstm(in...)); }));
  }
}

TEST_CASE("each gradient of fused gates is added to what is there already") {
  const Inputs gru = random_inputs({2, 33}, 3), lstm = random_inputs({2, 33}, 4);
  for (const std::size_t used_again : {0, 1, 2}) {
    CAPTURE(used_again);
    // Recorded later, so this gradient is written before that of the gates.
    auto and_again = [&](auto gates) {
      return [=](const Var& a, const Var& b, const Var& s) {
        const Var y = gates(a, b, s), all[] = {a, b, s};
        return y + sum(square(all[used_again]));
      };
    };
    check_close(value_and_gradients(gru, and_again(gru_gates)), value_and_gradients(gru, and_again(composed_gru)));
    auto first = [](auto gates) { return [=](auto&... in) { return gates(in...)[0]; }; };
    check_close(value_and_gradients(lstm, and_again(first(lstm_gates))),
                value_and_gradients(lstm, and_again(first(composed_lstm))));
  }
}

TEST_CASE("fused gates give the same bits for any number of threads") {
  const Inputs gru = random_inputs({301, 129}, 3), lstm = random_inputs({301, 129}, 4);
  auto run = [&](int threads) {
    set_num_threads(threads);
    std::vector<Tensor> all = value_and_gradients(gru, gru_gates);
    for (Tensor& t : value_and_gradients(lstm, [](auto&... in) { return lstm_gates(in...)[0]; }))
      all.push_back(std::move(t));
    return all;
  };
  const std::vector<Tensor> one = run(1);
  for (const int threads : {2, 3}) {
    const std::vector<Tensor> many = run(threads);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], many[i]));
  }
  set_num_threads(0);
}

TEST_CASE("a NaN stays in its own unit, and a saturated gate is exact") {
  constexpr std::int64_t kUnits = 35;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  // Through whichever gate it enters, it reaches h' and the gate's gradient of unit 7, and no other unit.
  for (const std::int64_t gates : {3, 4})
    for (std::int64_t gate = 0; gate < gates; ++gate)
      for (const bool in_state : {false, true}) {
        CAPTURE(gates);
        CAPTURE(gate);
        CAPTURE(in_state);
        Inputs in = random_inputs({1, kUnits}, gates);
        (in_state ? in.from_state : in.from_input).mutable_data<float>()[gate * kUnits + 7] = nan;
        const std::vector<Tensor> got = value_and_gradients(
            in, [&](auto&... all) { return gates == 3 ? gru_gates(all...) : lstm_gates(all...)[0]; });
        for (std::int64_t j = 0; j < kUnits; ++j) {
          CHECK(std::isnan(got[0].at(j)) == (j == 7));
          CHECK(std::isnan(got[1].at(gate * kUnits + j)) == (j == 7));
        }
      }
  // i = 0, f = 1, o = 1, whatever g: the cell keeps its state.
  const Tensor c_before = tensor({0.25}, {1, 1});
  const auto [h_after, c_after, o] = lstm_gates(tensor({-inf, inf, 3, inf}, {1, 4}), zeros({1, 4}), c_before);
  CHECK(c_after.item() == 0.25);
  CHECK(o.item() == 1);
  CHECK(h_after.item() == doctest::Approx(std::tanh(0.25)));
  const Var kept = gru_gates(tensor({0, inf, 3}, {1, 3}), zeros({1, 3}), tensor({0.25}, {1, 1}));
  CHECK(kept.item() == 0.25);
}

TEST_CASE("what fused gates refuse") {
  CHECK_THROWS_WITH_AS(gru_gates(zeros({2, 9}), zeros({2, 6}), zeros({2, 3})),
                       "gru_gates: h is [2, 3], so from_input and from_state must be [2, 9], not [2, 9] and [2, 6]",
                       Error);
  CHECK_THROWS_WITH_AS(lstm_gates(zeros({2, 9}), zeros({2, 9}), zeros({2, 3})),
                       "lstm_gates: c is [2, 3], so from_input and from_state must be [2, 12], not [2, 9] and [2, 9]",
                       Error);
  CHECK_THROWS_AS(lstm_gates(zeros({4}), zeros({4}), zeros({})), Error);
  CHECK_THROWS_WITH_AS(gru_gates(zeros({2, 9}), zeros({2, 9}), zeros({2, 3}, DType::f64)),
                       "gru_gates: h is f64, but from_input is f32 and from_state f32; all operands must have one "
                       "dtype",
                       Error);
}

TEST_CASE("a step of a cell is two maps and one record") {
  Rng rng(1);
  const GruCell gru({.in = kIn, .hidden = kHidden}, rng);
  const LstmCell lstm({.in = kIn, .hidden = kHidden}, rng);
  Tape tape;
  unroll(gru, 7, [](std::int64_t) { return x; });
  CHECK(tape.size() == 3 * 7);
  unroll(lstm, 7, [](std::int64_t) { return x; });
  CHECK(tape.size() == 2 * 3 * 7);
}

TEST_CASE("50 steps, forward and backward, allocate nothing from the third round on") {
  Rng rng(1);
  for (const bool norm : {false, true}) {
    CAPTURE(norm);
    const CellConfig config{.in = kIn, .hidden = 33, .norm = norm};
    GruCell gru(config, rng);
    LstmCell lstm(config, rng);
    const std::vector<NamedParameter> of_gru = parameters(gru), of_lstm = parameters(lstm);
    auto round = [&] {
      for (const auto* all : {&of_gru, &of_lstm})
        for (const NamedParameter& p : *all) p.parameter->zero_grad();
      Tape tape;
      auto input = [](std::int64_t) { return x; };
      tape.backward(sum(unroll(gru, 50, input)) + sum(unroll(lstm, 50, input)));
    };
    round();
    round();
    const std::int64_t heap = heap_allocations, system = memory_stats().system_requests;
    for (int i = 0; i < 3; ++i) round();
    CHECK(heap_allocations - heap == 0);
    CHECK(memory_stats().system_requests - system == 0);
  }
}

// The parity of a sequence of bits, all sequences in one batch. No step may be forgotten, and the state must flip.
template <class Cell>
double loss_of_parity(bool norm) {
  constexpr std::int64_t kBits = 5, kSequences = 1 << kBits, kUnits = 16;
  std::vector<Tensor> bits(kBits);
  Tensor parity = zeros({kSequences, 1});
  for (std::int64_t t = 0; t < kBits; ++t) {
    bits[t] = zeros({kSequences, 1});
    for (std::int64_t i = 0; i < kSequences; ++i) {
      const bool bit = (i >> t) & 1;
      bits[t].template mutable_data<float>()[i] = bit ? 1 : -1;
      parity.mutable_data<float>()[i] = (parity.at(i) != 0) != bit;
    }
  }
  Rng rng(3);
  Cell cell({.in = 1, .hidden = kUnits, .norm = norm}, rng);
  Linear head(kUnits, 1, rng);
  std::vector<NamedParameter> trained = parameters(cell);
  for (NamedParameter& p : parameters(head)) trained.push_back({"head." + p.name, p.parameter, p.aliases});
  AdamW optimizer(trained, {.weight_decay = 0});
  double loss = 0;
  for (int step = 0; step < 400; ++step) {
    Tape tape;
    const Var last = unroll(cell, kBits, [&](std::int64_t t) { return bits[t]; });
    const Var mean_loss = bce_with_logits(head(last), parity);
    tape.backward(mean_loss);
    optimizer.step({.lr = 0.02, .clip_norm = 1});
    loss = mean_loss.item();
  }
  return loss;
}

TEST_CASE("cells learn the parity of five bits") {
  CHECK(loss_of_parity<GruCell>(false) < 0.05);
  CHECK(loss_of_parity<LstmCell>(false) < 0.05);
  CHECK(loss_of_parity<LstmCell>(true) < 0.05);
}
