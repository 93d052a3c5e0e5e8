#include "metrics_log.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/atomic_file.h"

namespace tapestry::command {

using nlohmann::ordered_json;

namespace {

std::string lines_until(const std::string& path, std::int64_t last_step) {
  std::ifstream file(path);
  std::string kept, line;
  while (std::getline(file, line)) {
    const auto entry = ordered_json::parse(line, nullptr, false);
    if (entry.is_object() && entry.value("step", last_step + 1) <= last_step) kept += line + "\n";
  }
  return kept;
}

// NaN and infinity have no JSON form; null says that there was no number.
ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); }

}  // namespace

MetricsLog::MetricsLog(std::string path, bool resume, std::int64_t resumed_step,
                       std::function<void(const std::string&)> warn)
    : path_(std::move(path)), warn_(std::move(warn)) {
  const std::string kept = resume ? lines_until(path_, resumed_step) : "";
  replace_file(path_, kept);
  size_ = kept.size();
}

void MetricsLog::append(const std::string& line) {
  std::ofstream file(path_, std::ios::app);
  file << line << "\n" << std::flush;
  if (file) {
    size_ += line.size() + 1;
    return;
  }
  file.close();
  std::error_code ignored;
  std::filesystem::resize_file(path_, size_, ignored);  // no half line
  if (!warned_) warn_(text_of("warning: ", path_, " cannot be written and will lack lines; is the disk full?"));
  warned_ = true;
}

void MetricsLog::train(const StepInfo& info) {
  append(ordered_json({{"step", info.step},
                       {"loss", number(info.loss)},
                       {"lr", info.lr},
                       {"grad_norm", number(info.grad_norm)},
                       {"tokens_per_s", number(static_cast<double>(info.tokens) / info.seconds)},
                       {"scale", info.scale},
                       {"skipped", info.skipped},
                       {"skipped_steps", info.skipped_steps}})
             .dump());
}

void MetricsLog::evaluation(std::int64_t step, double val_loss, double seconds) {
  append(ordered_json({{"step", step}, {"val_loss", number(val_loss)}, {"seconds", number(seconds)}}).dump());
}

}  // namespace tapestry::command
