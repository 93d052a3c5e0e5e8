// tapestry bench tape: what recording an op costs, on tensors of one element.
#include <fmt/format.h>

#include "autograd/ops.h"
#include "benchmarks.h"
#include "measure.h"

namespace tapestry::command {

int bench_tape(const Arguments& args) {
  Options parser("tapestry bench tape", "Time recording and running backward, an op, on tensors of one element.");
  if (!parser.parse(args)) return 0;
  constexpr int kOps = 1000;
  auto row = [&](const char* name, auto&& op) {
    const Tensor x = full({1}, 1);
    const Timing both = time_calls([&] {
      Tape tape;
      Var y = tape.watch(x);
      for (int i = 0; i < kOps; ++i) y = op(y);
      tape.backward(y);
    });
    const Timing forward = time_calls([&] {
      Var y = x;
      for (int i = 0; i < kOps; ++i) y = op(y);
    });
    fmt::print("{:<26}{:>22.3f}{:>24.3f}\n", name, both.median / kOps * 1e6, forward.median / kOps * 1e6);
  };
  fmt::print("{:<26}{:>22}{:>24}\n", "us an op, one element", "forward and backward", "forward, unrecorded");
  row("neg", [](const Var& y) { return neg(y); });
  row("add_scalar", [](const Var& y) { return y + 1.0; });
  row("add", [](const Var& y) { return y + y; });
  const Var one(full({1}, 1));
  row("mul by a constant", [&](const Var& y) { return y * one; });
  row("tanh", [](const Var& y) { return tanh(y); });
  row("reshape", [](const Var& y) { return reshape(y, Shape{1}); });
  return 0;
}

}  // namespace tapestry::command
