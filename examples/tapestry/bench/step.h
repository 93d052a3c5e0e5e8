// One training step of a GPT as the benchmarks run it: forward (under Autocast for 16 bits), cross-entropy, backward
// (with a loss scale for f16), AdamW (lr 1e-3, decay 0.01 on everything) on one fixed batch of random tokens.
#pragma once

#include <cstdint>
#include <string>

#include "layers/models/gpt.h"
#include "optim/adam.h"
#include "optim/grad_scaler.h"

namespace tapestry::command {

struct StepConfig {
  std::int64_t layers = 4, heads = 4, width = 128, time = 64, batch = 12, vocabulary = 65;

  std::int64_t tokens() const { return batch * time; }
  // Useful floating-point operations of a step, attention counted causally: 6 (12 L C^2 + V C) B T + 6 L T C B T.
  double flops() const;
};

// "tiny", "c384" or "g124" (GPT-2 124M); throws UsageError for others.
StepConfig step_config(const std::string& name);

class TrainingStep {
 public:
  explicit TrainingStep(const StepConfig& config, DType dtype = DType::f32);
  double operator()();  // the loss before the update

 private:
  StepConfig config_;
  DType dtype_;
  Gpt model_;
  AdamW optimizer_;
  GradScaler scaler_;
  Tensor inputs_, targets_;
};

}  // namespace tapestry::command
