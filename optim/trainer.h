// Trainer: the loop of forward, backward, step, evaluation and saving, with hooks for everything that is shown.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "autograd/tape.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "optim/training_state.h"

namespace tapestry {

// The loss of one micro-batch: the mean over valid_tokens targets.
struct LossResult {
  Var loss;
  std::int64_t valid_tokens = 0;
};

struct TrainerOptions {
  std::int64_t max_steps = 0;
  std::int64_t accumulate = 1;  // micro-batches per step, weighted by their valid tokens
  double clip_norm = 0;
  std::int64_t eval_every = 0;     // 0: only at the end
  std::uint64_t seed = 0;          // of dropout; micro-batch i draws from (seed, i)
  double time_budget_seconds = 0;  // 0: none; stops early, never changes the schedule
};

struct StepInfo {
  std::int64_t step = 0;  // that was just done, from 1
  double loss = 0;        // mean over the tokens of the step
  double lr = 0, grad_norm = 0;
  std::int64_t tokens = 0;
  double seconds = 0;  // wall time of the step
  bool skipped = false;
};

class Trainer {
 public:
  // micro_loss(i) is the loss of micro-batch i, a pure function of i; valid_tokens(i), if given, tells the number of
  // targets before the forward pass (needed for exact weighting when accumulating; default: all micro-batches equal).
  struct Functions {
    std::function<LossResult(std::int64_t micro_step)> micro_loss;
    std::function<std::int64_t(std::int64_t micro_step)> valid_tokens;
    std::function<double()> evaluate;  // in eval mode, without a tape
    std::function<void(const StepInfo&)> on_step;
    std::function<void(std::int64_t step, double val_loss)> on_eval;
  };

  enum class Stop { finished, time_budget, interrupted };

  Trainer(Module& model, Optimizer& optimizer, Schedule schedule, TrainerOptions options, Functions functions);

  // Trains from the current step to max_steps. The first backward checks that visit() reaches every Parameter used.
  Stop run();
  StepInfo step();                           // one step; allocates nothing from the third on at fixed shapes
  void interrupt() { interrupted_ = true; }  // safe in a signal handler: run() returns after the current step
  std::int64_t current_step() const { return step_; }

  // With `extra` merged in. load continues where save was called.
  void save(const std::string& path, RunState extra = {});
  RunState load(const std::string& path);

 private:
  Module& model_;
  Optimizer& optimizer_;
  Schedule schedule_;
  TrainerOptions options_;
  Functions functions_;
  std::int64_t step_ = 0, micro_step_ = 0;
  bool checked_ = false;
  std::atomic<bool> interrupted_{false};
};

}  // namespace tapestry
