// Shared by the tests of GradScaler: backward passes whose gradients are given, and one parameter with its optimizer
// and a scaler.
#pragma once

#include "autograd/ops.h"
#include "optim/grad_scaler.h"
#include "tests/optimizer_testing.h"

namespace tapestry::testing {

// The loss whose gradient is `gradient` for every element of every parameter.
inline Var loss_of(std::vector<Parameter>& list, double gradient) {
  Var loss;
  for (Parameter& p : list) {
    const Var term = sum(Var(p) * Var(full(p.shape(), gradient, p.dtype())));
    loss = loss.value() ? loss + term : term;
  }
  return loss;
}
inline void scaled_backward(GradScaler& scaler, std::vector<Parameter>& list, double gradient, double weight = 1) {
  Tape tape;
  scaler.backward(loss_of(list, gradient), weight);
}
inline void plain_backward(std::vector<Parameter>& list, double gradient) {
  Tape tape;
  tape.backward(loss_of(list, gradient));
}

// One parameter, its optimizer and a scaler.
struct Setup {
  explicit Setup(const GradScalerOptions& options = {}) : optimizer(one_group(list)), scaler(options) {}
  StepReport step(double gradient, StepOptions options = {.lr = 1}) {
    scaled_backward(scaler, list, gradient);
    options.scaler = &scaler;
    return optimizer.step(options);
  }
  double value() const { return list[0].value().at(0); }
  std::vector<Parameter> list = filled({0});
  Sgd optimizer;
  GradScaler scaler;
};

}  // namespace tapestry::testing
