// tapestry bench scaling: does the time of a step grow as its work does? One dimension at a time is changed. The times
// are set against a model of two rates, t = flops / F + bytes / B, which are fitted to all rows at once.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "benchmarks.h"
#include "core/parallel.h"
#include "measure.h"
#include "step.h"

namespace tapestry::command {

namespace {

struct Sweep {
  const char* name;
  std::int64_t StepConfig::*field;
  std::vector<std::int64_t> values;
};

struct Row {
  const char* name;
  std::int64_t value;
  double flops, bytes, seconds;
};

// What a step at least reads and writes: an activation for each of the passes over it, forward and backward; the
// weights three times and in the optimizer; the logits.
double bytes_of(const StepConfig& c) {
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  const double parameters = number(12 * c.layers * c.width * c.width + (c.vocabulary + c.time) * c.width);
  constexpr double kPassesPerLayer = 80;  // of [tokens, width]: norms 16, q k v 18, attention 8, residuals 6, MLP 32
  return 4 * (number(c.tokens() * c.layers * c.width) * kPassesPerLayer + parameters * 11 +
              number(c.tokens() * c.vocabulary) * 6);
}

struct Rates {
  double seconds_per_flop = 0, seconds_per_byte = 0;
  double predict(const Row& r) const { return r.flops * seconds_per_flop + r.bytes * seconds_per_byte; }
};

// Least squares of the relative errors; a rate that comes out negative is left out.
Rates fit(const std::vector<Row>& rows) {
  double ff = 0, fb = 0, bb = 0, f1 = 0, b1 = 0;
  for (const Row& r : rows) {
    const double f = r.flops / r.seconds, b = r.bytes / r.seconds;
    ff += f * f, fb += f * b, bb += b * b, f1 += f, b1 += b;
  }
  const double determinant = ff * bb - fb * fb;
  const Rates both{(f1 * bb - b1 * fb) / determinant, (b1 * ff - f1 * fb) / determinant};
  return both.seconds_per_byte > 0 ? both : Rates{f1 / ff, 0};
}

}  // namespace

int bench_scaling(const Arguments& args) {
  int threads = 0;
  double seconds = 2;
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
      {"odd width", &StepConfig::width, {252, 260, 272}},
      {"odd time", &StepConfig::time, {113, 127, 129, 144}},
      {"odd vocabulary", &StepConfig::vocabulary, {1009, 1021, 1031, 1040}},
  };
  std::vector<Row> rows;
  for (const Sweep& sweep : sweeps) {
    for (const std::int64_t value : sweep.values) {
      StepConfig c = base;
      c.*sweep.field = value;
      TrainingStep step(c);
      const Timing t = time_calls([&] { step(); }, seconds);
      rows.push_back({sweep.name, value, c.flops(), bytes_of(c), t.median});
    }
  }
  const Rates rates = fit(rows);
  fmt::print("4 layers, 4 heads, width 256, time 128, batch 8, vocabulary 256, and one of them changed; {} threads\n",
             num_threads());
  fmt::print("{:<16}{:>8}{:>11}{:>12}{:>11}{:>12}\n", "", "", "ms", "GFLOP/s", "model ms", "of model");
  for (const Row& r : rows)
    fmt::print("{:<16}{:>8}{:>11.2f}{:>12.1f}{:>11.2f}{:>11.0f}%\n", r.name, r.value, r.seconds * 1e3,
               r.flops / r.seconds * 1e-9, rates.predict(r) * 1e3, 100 * r.seconds / rates.predict(r));
  fmt::print("model: {:.0f} GFLOP/s", 1e-9 / rates.seconds_per_flop);
  if (rates.seconds_per_byte > 0) fmt::print(" and {:.0f} GB/s", 1e-9 / rates.seconds_per_byte);
  fmt::print("\n");
  return 0;
}

}  // namespace tapestry::command
