// What --monitor and --detect_nan of `tapestry train` do after each step.
#pragma once

#include <optional>

#include "autograd/monitor.h"
#include "optim/trainer.h"
#include "train_options.h"

namespace tapestry::command {

class Monitoring {
 public:
  // Watches from now on if `o` says so; `print` gets whole lines.
  Monitoring(const TrainOptions& o, Module& model, std::function<void(const std::string&)> print);

  // With --detect_nan, throws for a step that is not finite: the error names the record where it began.
  void on_step(const StepInfo& info, Trainer& trainer);
  void finish();  // the table over all steps, or those since the last one

 private:
  void detect(const StepInfo& info, Trainer& trainer);

  MonitorChoice choice_;
  bool detect_nan_;
  Module& model_;
  std::function<void(const std::string&)> print_;
  std::optional<Monitor> monitor_;
};

}  // namespace tapestry::command
