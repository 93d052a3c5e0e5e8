// Trainer: the loop of forward, backward, step, evaluation and saving, with hooks for everything that is shown.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "autograd/tape.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "optim/outlier_filter.h"
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
  double clip_norm = 0, clip_value = 0;
  // Must outlive the Trainer, which saves and loads their states.
  GradScaler* scaler = nullptr;
  OutlierFilter* outliers = nullptr;
  std::int64_t eval_every = 0;     // 0: only at the end
  std::uint64_t seed = 0;          // of dropout; micro-batch i draws from (seed, i)
  double time_budget_seconds = 0;  // 0: none; stops early, never changes the schedule
};

struct StepInfo {
  std::int64_t step = 0;         // that was just done, from 1
  double loss = 0;               // mean over the tokens of the step
  double lr = 0, grad_norm = 0;  // the norm before clipping, without the loss scale
  double scale = 1;              // of the loss in this step
  std::int64_t tokens = 0;
  double seconds = 0;  // wall time of the step
  bool skipped = false;
  SkipReason reason = SkipReason::none;
  std::int64_t skipped_steps = 0;  // so far, this one included
};

class Trainer {
 public:
  // micro_loss(i) is the loss of micro-batch i, a pure function of i; valid_tokens(i), if given, tells the number of
  // targets before the forward pass. It is needed for exact weighting when accumulating micro-batches of unequal size:
  // without it they must all have the same number, else step() throws.
  struct Functions {
    std::function<LossResult(std::int64_t micro_step)> micro_loss;
    std::function<std::int64_t(std::int64_t micro_step)> valid_tokens = {};
    std::function<double()> evaluate = {};  // called in eval mode, with nothing recorded
    std::function<void(const StepInfo&)> on_step = {};
    std::function<void(std::int64_t step, double val_loss)> on_eval = {};
  };

  enum class Stop { finished, time_budget, interrupted };

  // A skipped step counts as a step, but not in the schedule: that is a function of optimizer.steps().
  Trainer(Module& model, Optimizer& optimizer, Schedule schedule, TrainerOptions options, Functions functions);

  // Trains from the current step to max_steps, with an evaluation every eval_every steps and at the end. The first
  // backward checks that visit() reaches every Parameter used.
  Stop run();
  // Micro-batches until the window is full, then the update; allocates nothing from the third on at fixed shapes.
  // If micro_loss throws, the window stays open and the next call goes on with it; if backward throws, it starts anew.
  StepInfo step();
  void micro_step();  // only one micro-batch of the open window
  // The micro-batches of the step before once more, with the same random numbers and the weights of now, to look closer
  // at a step that was skipped. No update; the gradients are unset afterwards.
  void replay_step();
  // Safe in a signal handler: run() saves nothing and returns after the current step.
  void interrupt() { interrupted_ = true; }
  std::int64_t current_step() const { return step_; }

  // With `extra` merged in; also in an open window. load continues where save was called, with the seed of that run.
  void save(const std::string& path, RunState extra = {}) const;
  RunState load(const std::string& path);

 private:
  // Of the micro-batch at hand in the mean over its window.
  double next_weight();
  void evaluate();

  // What an open accumulation window has gathered.
  struct Window {
    std::int64_t micro_steps = 0, tokens = 0;
    double loss = 0;
    std::int64_t all_tokens = -1;  // that it will have, by valid_tokens; -1: not yet asked
  };

  Module& model_;
  Optimizer& optimizer_;
  Schedule schedule_;
  TrainerOptions options_;
  Functions functions_;
  std::int64_t step_ = 0, micro_step_ = 0;
  Window window_;
  bool checked_ = false;
  std::atomic<bool> interrupted_{false};
};

}  // namespace tapestry
