// A layer of your own: what it needs, how a member forgotten in visit() shows, and a network of it that learns.
#include <cstdio>

#include "tapestry.h"
using namespace tapestry;

// A residual block whose branch starts almost closed, so that many of them train from the first step (LayerScale,
// Touvron et al. 2021):  y = x + scale * down(gelu(up(norm(x)))),  scale [C], initially 0.1
//
// 1. Members are plain: other layers, and Parameters of its own. operator() says what it computes; visit() names every
//    member once, and that one list serves optimizers, saving, train/eval, conversion, counting and gradcheck.
struct ScaledBlock : Module {
  ScaledBlock(std::int64_t width, Rng& rng)
      : norm(width), up(width, 4 * width, rng), down(4 * width, width, rng), scale(full({width}, 0.1)) {}
  Var operator()(const Var& x) const { return x + scale * down(gelu(up(norm(x)))); }
  void visit(Visitor& v) override {
    v("norm", norm);
    v("up", up);
    v("down", down);
    v("scale", scale);
  }
  std::string_view kind() const override { return "ScaledBlock"; }

  LayerNorm norm;
  Linear up, down;
  Parameter scale;
};

// 2. The mistake to make with visit(): a member is left out. It would keep its first value for ever, and be missing in
//    every file. The tape knows which Parameters the forward used, so gradcheck and Trainer both refuse it.
struct Forgetful : ScaledBlock {
  using ScaledBlock::ScaledBlock;
  void visit(Visitor& v) override {
    v("norm", norm);
    v("up", up);
    v("down", down);
  }
  std::string_view kind() const override { return "Forgetful"; }
};

int main() {
  Rng rng(42);
  Tensor probe = empty({3, 4}, DType::f64), x = empty({256, 2});
  fill_normal(probe, 0, 1, rng.next());
  fill_uniform(x, -1, 1, rng.next());

  // 3. Its test: the gradients of the input and of all seven parameters against differences of f64 values.
  ScaledBlock block(4, rng);
  Forgetful forgetful(4, rng);
  const GradcheckReport good = gradcheck(block, {probe}), bad = gradcheck(forgetful, {probe});
  std::printf("ScaledBlock: %s\n\nForgetful: %s\n\n", good.text().c_str(), bad.text().c_str());

  // 4. It is used like any other layer. What the network is made of:
  Sequential model{Linear(2, 16, rng), ScaledBlock(16, rng), ScaledBlock(16, rng), Linear(16, 1, rng)};
  std::printf("%s\n", summary(model).c_str());

  // 5. And it learns: the product of two numbers.
  const Var target = (slice(x, 1, 0, 1) * slice(x, 1, 1, 2)).value();
  AdamW optimizer(parameters(model), {.weight_decay = 0});
  const Schedule rate = warmup(20, cosine(1e-2, 1e-4, 280));
  double last = 0;
  for (int step = 0; step < 300; ++step) {
    Tape tape;
    const Var loss = mse(model(x), target);
    tape.backward(loss);
    optimizer.step({.lr = rate(step), .clip_norm = 1.0});
    last = loss.item();
    if (step % 100 == 0 || step == 299) std::printf("step %3d  loss %.6f\n", step, last);
  }
  return good && bad.fault == GradcheckFault::not_visited && last < 1e-3 ? 0 : 1;
}
