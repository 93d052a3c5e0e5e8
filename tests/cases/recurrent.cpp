// The gates of recurrent cells, with every subset of outputs used that a cell can use.
#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

const Shape kStates[] = {{1}, {3, 1}, {2, 31}, {2, 33}, {0, 4}, {2, 3, 5}, {19, 257}};

std::vector<Tensor> gate_inputs(const Shape& state, std::int64_t gates) {
  const Shape maps = state.with_back(gates * state.back());
  return {normal(maps, 1), normal(maps, 2), normal(state, 3)};
}

}  // namespace

std::vector<Case> recurrent_cases() {
  std::vector<Case> cases;
  for (const Shape& s : kStates) {
    cases.push_back(row(text_of("gru_gates ", s), gate_inputs(s, 3),
                        [](const Var& a, const Var& b, const Var& h) { return gru_gates(a, b, h); }));
    cases.push_back(row(text_of("lstm_gates ", s), gate_inputs(s, 4),
                        [](const Var& a, const Var& b, const Var& c) { return lstm_gates(a, b, c); }));
  }
  const char* const outputs[] = {"h'", "c'", "o"};
  for (const std::size_t used : {0, 1, 2})
    cases.push_back(row(text_of("lstm_gates [3, 5], only ", outputs[used], " used"), gate_inputs({3, 5}, 4),
                        [used](const Var& a, const Var& b, const Var& c) { return lstm_gates(a, b, c)[used]; }));
  cases.push_back(
      row("lstm_gates [3, 5], h' and c' used", gate_inputs({3, 5}, 4), [](const Var& a, const Var& b, const Var& c) {
        const auto [h, c_next, o] = lstm_gates(a, b, c);
        return h * 2.0 + c_next;
      }));
  return cases;
}

}  // namespace tapestry
