// What a user's first program may look like; built against the installed package by test_package.sh.
#include <cstdio>

#include "tapestry.h"

int main() {
  using namespace tapestry;
  Tape tape;
  const Var x = tape.watch(tensor({3}));
  tape.backward(sum(square(x)));
  std::printf("%g\n", tape.grad(x).item());
  return tape.grad(x).item() == 6 ? 0 : 1;
}
