// A layer of your own: plain members, operator(), visit(). Trained, checked and counted like the built-in ones.
#include <cstdio>

#include "tapestry.h"

using namespace tapestry;

// A gated feed-forward layer (Dauphin et al. 2017): y = down(sigmoid(gate(x)) * value(x)).
class GatedUnit : public Module {
 public:
  GatedUnit(std::int64_t in, std::int64_t hidden, std::int64_t out, Rng& rng)
      : gate(in, hidden, rng), value(in, hidden, rng), down(hidden, out, rng) {}
  Var operator()(const Var& x) const { return down(sigmoid(gate(x)) * value(x)); }
  void visit(Visitor& v) override {
    v("gate", gate);
    v("value", value);
    v("down", down);
  }
  std::string_view kind() const override { return "GatedUnit"; }

  Linear gate, value, down;
};

int main() {
  Rng rng(42);
  GatedUnit model(2, 16, 1, rng);
  for (const NamedParameter& p : parameters(model))
    std::printf("%-14s %s\n", p.name.c_str(), to_text(p.parameter->shape()).c_str());

  // Every gradient of the layer, of inputs and parameters, against finite differences in f64.
  Tensor probe = empty({5, 2}, DType::f64);
  fill_normal(probe, 0, 1, rng.next());
  const GradcheckReport report = gradcheck(model, {probe});
  std::printf("%s\n", report.text().c_str());

  // XOR on [-1, 1]: the product of the inputs.
  Tensor x = empty({256, 2});
  fill_uniform(x, -1, 1, rng.next());
  const Tensor target = (slice(x, 1, 0, 1) * slice(x, 1, 1, 2)).value();
  AdamW optimizer(parameters(model), {.weight_decay = 0});
  const Schedule rate = warmup(20, cosine(1e-2, 1e-4, 480));
  double last = 0;
  for (int step = 0; step < 500; ++step) {
    Tape tape;
    const Var loss = mean(square(model(x) - Var(target)));
    tape.backward(loss);
    optimizer.step({.lr = rate(step), .clip_norm = 1.0});
    last = loss.item();
    if (step % 100 == 0 || step == 499) std::printf("step %3d  loss %.6f\n", step, last);
  }
  return report && last < 1e-3 ? 0 : 1;
}
