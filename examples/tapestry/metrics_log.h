// out/metrics.jsonl: one JSON object for each logged step or evaluation.
#pragma once

#include <fstream>
#include <string>

namespace tapestry::command {

class MetricsLog {
 public:
  // Starts a new file, or continues one: then lines of steps after `resumed_step` are dropped.
  MetricsLog(std::string path, bool resume, std::int64_t resumed_step);

  void train(std::int64_t step, double loss, double lr, double grad_norm, double tokens_per_second, bool skipped);
  void evaluation(std::int64_t step, double val_loss, double seconds);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace tapestry::command
