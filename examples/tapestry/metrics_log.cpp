#include "metrics_log.h"

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

void write_line(std::ofstream& file, const std::string& path, const ordered_json& entry) {
  file << entry.dump() << "\n" << std::flush;
  TAP_CHECK(file, path, ": cannot be written; is the disk full?");
}

}  // namespace

MetricsLog::MetricsLog(std::string path, bool resume, std::int64_t resumed_step) : path_(std::move(path)) {
  replace_file(path_, resume ? lines_until(path_, resumed_step) : "");
  file_.open(path_, std::ios::app);
  TAP_CHECK(file_, path_, ": cannot be written");
}

void MetricsLog::train(std::int64_t step, double loss, double lr, double grad_norm, double tokens_per_second,
                       bool skipped) {
  write_line(file_, path_,
             {{"step", step},
              {"loss", number(loss)},
              {"lr", lr},
              {"grad_norm", number(grad_norm)},
              {"tokens_per_s", number(tokens_per_second)},
              {"skipped", skipped}});
}

void MetricsLog::evaluation(std::int64_t step, double val_loss, double seconds) {
  write_line(file_, path_, {{"step", step}, {"val_loss", number(val_loss)}, {"seconds", number(seconds)}});
}

}  // namespace tapestry::command
