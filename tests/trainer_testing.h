// Shared by the tests of Trainer: a small net with dropout, data that is a function of the micro-batch, and a run of
// both.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "core/random.h"
#include "optim/adam.h"
#include "optim/trainer.h"

namespace tapestry::testing {

inline constexpr std::int64_t kIn = 7, kHidden = 33, kClasses = 5, kRows = 12;
inline constexpr std::int64_t kIgnored = -100;

inline Parameter random_parameter(const Shape& shape, Rng& rng) {
  Tensor value = empty(shape);
  fill_normal(value, 0, 0.3, rng.next());
  return Parameter(value);
}

// Two layers with dropout between them.
class Net : public Module {
 public:
  explicit Net(std::uint64_t seed, double p = 0.2) : dropout_p(p), rng_(seed) {
    up = random_parameter({kIn, kHidden}, rng_);
    down = random_parameter({kHidden, kClasses}, rng_);
  }
  Var operator()(const Tensor& x) const {
    const Autocast scope(autocast);
    Var h = gelu_tanh(linear(Var(x), up, bias));
    if (training()) h = dropout(h, dropout_p, next_random_key());
    return linear(h, down);
  }
  void visit(Visitor& v) override {
    v("up", up);
    v("bias", bias);
    v("down", down);
    if (unused) v("unused", *unused);
  }

  Parameter up{Shape{1}}, bias{Shape{kHidden}}, down{Shape{1}};
  std::unique_ptr<Parameter> unused;
  double dropout_p;
  DType autocast = DType::f32;  // of the forward pass

 private:
  Rng rng_;
};

// Micro-batch i: random inputs, targets that depend on them, and `ignored(i)` rows without a target.
struct Data {
  std::int64_t rows = kRows;
  std::function<std::int64_t(std::int64_t)> ignored = [](std::int64_t) { return 0; };

  Tensor inputs(std::int64_t i) const {
    Tensor x = empty({rows, kIn});
    fill_normal(x, 0, 1, {99, static_cast<std::uint64_t>(i)});
    return x;
  }
  Tensor targets(std::int64_t i, const Tensor& x) const {
    Tensor t = empty({rows}, DType::i64);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = x.data<float>() + r * kIn;
      std::int64_t best = 0;
      for (std::int64_t c = 1; c < kClasses; ++c)
        if (row[c] > row[best]) best = c;
      t.mutable_data<std::int64_t>()[r] = r < ignored(i) ? kIgnored : best;
    }
    return t;
  }
  LossResult loss(const Net& net, std::int64_t i) const {
    const Tensor x = inputs(i);
    const CrossEntropy result = cross_entropy(net(x), targets(i, x), kIgnored);
    return {result.loss, result.valid_tokens};
  }
};

// A model with its optimizer and trainer, as a program would make them.
struct Run {
  Run(std::uint64_t seed, TrainerOptions options, Data d = {}, double dropout = 0.2)
      : net(seed, dropout), data(std::move(d)), optimizer(parameters(net), {.weight_decay = 0.1}) {
    functions.micro_loss = [this](std::int64_t i) {
      if (i == fail_at) fail("no data");
      return data.loss(net, i);
    };
    functions.valid_tokens = [this](std::int64_t i) { return data.rows - data.ignored(i); };
    functions.on_step = [this](const StepInfo& info) { steps.push_back(info); };
    functions.on_eval = [this](std::int64_t step, double loss) { evals.emplace_back(step, loss); };
    if (options.clip_norm == 0) options.clip_norm = 1;
    opts = options;
  }
  Trainer& trainer() {
    if (!trainer_)
      trainer_ = std::make_unique<Trainer>(net, optimizer, warmup(3, cosine(0.02, 0.001, 30)), opts, functions);
    return *trainer_;
  }
  std::vector<double> losses() const {
    std::vector<double> result;
    for (const StepInfo& info : steps) result.push_back(info.loss);
    return result;
  }

  Net net;
  Data data;
  AdamW optimizer;
  TrainerOptions opts;
  Trainer::Functions functions;
  std::int64_t fail_at = -1;
  std::vector<StepInfo> steps;
  std::vector<std::pair<std::int64_t, double>> evals;

 private:
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace tapestry::testing
