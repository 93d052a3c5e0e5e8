// What a training run shows: a bar that redraws itself on a terminal, plain lines elsewhere. Output that cannot be
// written, to a full disk or a closed pipe, is no reason to stop training and is dropped.
#pragma once

#include <cstdint>
#include <string>

#include "optim/trainer.h"

namespace tapestry::command {

class Progress {
 public:
  Progress(std::int64_t first_step, std::int64_t last_step, std::int64_t log_interval);

  void step(const StepInfo& info);
  void line(const std::string& text);       // above the bar
  void highlight(const std::string& text);  // the same, in colour where that is wanted
  void finish();                            // removes the bar

  double tokens_per_second() const;  // of the training steps, evaluation not counted

 private:
  std::string bar(std::int64_t step, double loss) const;
  void clear();

  std::int64_t first_step_, last_step_, log_interval_;
  bool terminal_, colour_;
  bool drawn_ = false;
  std::int64_t tokens_ = 0;
  double seconds_ = 0, smooth_loss_ = 0, since_drawn_ = 0;
};

void print_line(const std::string& text);    // to stdout, at once
std::string human_duration(double seconds);  // "1:05", "1:02:03"
double plain_nan(double value);              // the same, but never the NaN that shows as "-nan"

}  // namespace tapestry::command
