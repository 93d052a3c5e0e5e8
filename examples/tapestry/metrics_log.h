// out/metrics.jsonl: one JSON object for each logged step or evaluation. A line that cannot be written is left out, and
// the first one is reported; training goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "optim/trainer.h"

namespace tapestry::command {

class MetricsLog {
 public:
  // Starts a new file, or continues one: then lines of steps after `resumed_step` are dropped.
  // Throws if the file cannot be written at all.
  MetricsLog(std::string path, bool resume, std::int64_t resumed_step, std::function<void(const std::string&)> warn);

  void train(const StepInfo& info);
  void evaluation(std::int64_t step, double val_loss, double seconds);

 private:
  void append(const std::string& line);

  std::string path_;
  std::function<void(const std::string&)> warn_;
  std::uintmax_t size_ = 0;  // of the whole lines
  bool warned_ = false;
};

}  // namespace tapestry::command
