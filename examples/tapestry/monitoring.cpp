#include "monitoring.h"

#include <fmt/format.h>

#include <cmath>

#include "progress.h"

namespace tapestry::command {

Monitoring::Monitoring(const TrainOptions& o, Module& model, std::function<void(const std::string&)> print)
    : choice_(parse_monitor(o.monitor)), detect_nan_(o.detect_nan), model_(model), print_(std::move(print)) {
  if (choice_.overflow || choice_.headroom) monitor_.emplace(model);
}

void Monitoring::on_step(const StepInfo& info, Trainer& trainer) {
  if (monitor_) {
    if (monitor_->first()) print_(fmt::format("step {}: {}", info.step, monitor_->first()->text()));
    monitor_->next_step();
    if (choice_.every > 0 && info.step % choice_.every == 0) finish();
  }
  // With a loss scale an overflow of the gradient is expected now and then, and the scaler's business.
  const bool expected = info.scale > 1 && std::isfinite(info.loss);
  if (detect_nan_ && !expected && !(std::isfinite(info.loss) && std::isfinite(info.grad_norm))) detect(info, trainer);
}

void Monitoring::finish() {
  if (!monitor_ || monitor_->rows().empty()) return;
  std::string table = choice_.headroom ? monitor_->headroom_text() : monitor_->overflow_text();
  if (table.empty()) table = "monitor: no tensor had NaN or inf\n";
  table.pop_back();
  print_(table);
  monitor_->clear();
}

void Monitoring::detect(const StepInfo& info, Trainer& trainer) {
  const std::optional<Finding> finding = find_first_nan(model_, [&] { trainer.replay_step(); });
  fail("step ", info.step, ": the loss is ", plain_nan(info.loss), " and the gradient norm ", plain_nan(info.grad_norm),
       finding ? "; NaN or inf begins in " + finding->text() : "; but the same step again, op by op, is finite");
}

}  // namespace tapestry::command
