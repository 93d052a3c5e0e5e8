// The tape in a page: values, gradients, parameters, and one step of gradient descent by hand.
#include <cstdio>

#include "tapestry.h"

using namespace tapestry;

int main() {
  // 1. Watch a tensor, compute something, ask for the gradient.
  {
    Tape tape;
    const Var x = tape.watch(tensor({1, 2, 3}));
    const Var y = sum(x * x + 2.0 * x);  // y = sum of x^2 + 2x, so dy/dx = 2x + 2
    tape.backward(y);
    std::printf("y = %g, dy/dx = %s\n", y.item(), to_text(tape.grad(x)).c_str());
  }

  // 2. A Parameter keeps its value and gathers gradients over any number of tapes.
  Parameter weight(tensor({0.5, -0.5}, {2, 1}));
  const Tensor inputs = tensor({1, 0, 0, 1, 1, 1}, {3, 2}), targets = tensor({2, -1, 1}, {3, 1});
  Sgd optimizer({{"weight", &weight}});
  for (int step = 0; step <= 40; ++step) {
    Tape tape;  // what happens in this scope is recorded; its memory is reused by the next one
    const Var error = matmul(inputs, weight) - Var(targets);
    const Var loss = mean(square(error));
    tape.backward(loss);
    optimizer.step({.lr = 0.3});
    if (step % 10 == 0) std::printf("step %2d  loss %.6f\n", step, loss.item());
  }
  std::printf("weight = %s (the exact answer is 2, -1)\n", to_text(weight.value()).c_str());

  // 3. Mistakes are named.
  Var stale;
  {
    Tape tape;
    stale = square(weight);
  }
  try {
    Tape tape;
    sum(stale + weight);
  } catch (const Error& e) {
    std::printf("error: %s\n", e.what());
  }
}
