// tapestry bench scaling: does the time of a step grow as its work does? One dimension at a time is changed, and each
// time is set against a model of flops and bytes whose two rates come from the first row of its dimension.
#include <fmt/format.h>

#include <functional>

#include "benchmarks.h"
#include "core/parallel.h"
#include "measure.h"
#include "step.h"

namespace tapestry::command {

namespace {

Timing time_step(const StepConfig& c, double seconds) {
  TrainingStep step(c);
  return time_calls([&] { step(); }, seconds);
}

struct Sweep {
  const char* name;
  std::int64_t StepConfig::*field;
  std::vector<std::int64_t> values;
};

}  // namespace

int bench_scaling(const Arguments& args) {
  int threads = 0;
  double seconds = 1;
  Options parser("tapestry bench scaling", "Time steps of growing models beside what their work predicts.");
  parser.add("threads", threads, "0: as many as there are processors");
  parser.add("seconds", seconds, "to measure each size for");
  if (!parser.parse(args)) return 0;
  if (!(seconds > 0)) throw UsageError("--seconds must be above 0");
  set_num_threads(threads);

  const StepConfig base{4, 4, 256, 128, 8, 256};
  const Sweep sweeps[] = {
      {"layers", &StepConfig::layers, {1, 2, 4, 8}},
      {"width", &StepConfig::width, {128, 192, 256, 384, 512}},
      {"time", &StepConfig::time, {32, 64, 128, 256, 512}},
      {"batch", &StepConfig::batch, {1, 2, 4, 8, 16}},
      {"vocabulary", &StepConfig::vocabulary, {64, 256, 1024, 4096, 16384}},
      {"odd width", &StepConfig::width, {252, 256, 260, 272}},
      {"odd time", &StepConfig::time, {113, 127, 128, 129, 131}},
      {"odd vocabulary", &StepConfig::vocabulary, {1009, 1021, 1024, 1031}},
  };
  fmt::print("{:<16}{:>8}{:>11}{:>12}{:>14}\n", "", "", "ms", "GFLOP/s", "ns a kFLOP");
  for (const Sweep& sweep : sweeps) {
    for (const std::int64_t value : sweep.values) {
      StepConfig c = base;
      c.*sweep.field = value;
      const Timing t = time_step(c, seconds);
      fmt::print("{:<16}{:>8}{:>11.2f}{:>12.1f}{:>14.3f}\n", sweep.name, value, t.median * 1e3,
                 c.flops() / t.median * 1e-9, t.median / c.flops() * 1e12);
    }
  }
  return 0;
}

}  // namespace tapestry::command
