#include "step.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdio>

#include "autograd/autocast.h"
#include "autograd/profile.h"
#include "benchmarks.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "measure.h"

namespace tapestry::command {

double StepConfig::flops() const {
  const double n = static_cast<double>(tokens());
  return 6 * n * static_cast<double>(12 * layers * width * width + vocabulary * width + layers * time * width);
}

StepConfig step_config(const std::string& name) {
  if (name == "tiny") return {4, 4, 128, 64, 12, 65};
  if (name == "c384") return {6, 6, 384, 256, 8, 65};
  if (name == "g124") return {12, 12, 768, 64, 4, 50304};
  throw UsageError(
      fmt::format("--config must be tiny, c384 or g124, not '{}'{}", name, suggestion(name, {"tiny", "c384", "g124"})));
}

namespace {

GptConfig model_config(const StepConfig& c) {
  return {.vocabulary = c.vocabulary, .context = c.time, .layers = c.layers, .heads = c.heads, .width = c.width};
}

// All in one group: the benchmark decays everything.
std::vector<ParameterGroup> one_group(Module& model) { return {{.parameters = parameters(model)}}; }

Tensor random_tokens(const StepConfig& c, std::int64_t shift) {
  Tensor tokens = empty({c.batch, c.time}, DType::i32);
  auto* ids = tokens.mutable_data<std::int32_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i)
    ids[i] = static_cast<std::int32_t>(RandomKey{7, 0}.below(i + shift, c.vocabulary));
  return tokens;
}

}  // namespace

TrainingStep::TrainingStep(const StepConfig& config, DType dtype)
    : config_(config),
      dtype_(dtype),
      model_(model_config(config), 1),
      optimizer_(one_group(model_), {.weight_decay = 0.01}),
      scaler_({.enabled = dtype == DType::f16}),
      inputs_(random_tokens(config, 0)),
      targets_(random_tokens(config, 1)) {}

double TrainingStep::operator()() {
  double loss;
  {
    Tape tape;
    const Var mean = [this] {
      const Autocast scope(dtype_);
      return model_.loss(inputs_, targets_).loss;
    }();
    scaler_.backward(mean);
    loss = mean.item();
  }
  optimizer_.step({.lr = 1e-3, .scaler = &scaler_});
  if (Profile* profile = Profile::current()) profile->lap("AdamW.step");
  return loss;
}

namespace {

double peak_rss_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void print_memory() {
  const MemoryStats stats = memory_stats();
  fmt::print(stderr, "memory at its peak:");
  for (int c = 0; c < kMemoryCategories; ++c)
    fmt::print(stderr, " {} {:.1f} MB,", name_of(static_cast<MemoryCategory>(c)),
               static_cast<double>(stats.peak[static_cast<std::size_t>(c)]) / 1048576);
  fmt::print(stderr, " all {:.1f} MB\n", static_cast<double>(stats.peak_total) / 1048576);
}

void check_losses(double first, double last, const StepConfig& c) {
  TAP_CHECK(std::abs(first - std::log(static_cast<double>(c.vocabulary))) < 1 && last < first + 0.5,
            "bench step: the loss went from ", first, " to ", last, ", which cannot be right");
}

}  // namespace

int bench_step(const Arguments& args) {
  std::string config = "tiny", dtype = "f32";
  std::int64_t steps = 0, warmup = 3;
  int threads = 0;
  bool profiled = false;
  Options parser("tapestry bench step",
                 "Time a whole training step: forward, cross-entropy, backward, AdamW. Prints one line.");
  parser.add("config", config, "tiny, c384 or g124 (GPT-2 124M at 64 tokens)");
  parser.add("threads", threads, "0: as many as there are processors");
  parser.add("steps", steps, "timed steps; 0: 200 for tiny, else 8");
  parser.add("warmup", warmup, "steps before them");
  parser.add("dtype", dtype, "f32, bf16 or f16: Autocast of the forward pass", one_of({"f32", "bf16", "f16"}));
  parser.add_flag("profile", profiled, "show on stderr where the time goes, op by op, and the memory");
  if (!parser.parse(args)) return 0;
  if (steps < 0 || warmup < 1) throw UsageError("--steps must not be negative and --warmup at least 1");
  const StepConfig c = step_config(config);
  set_num_threads(threads);
  if (steps == 0) steps = config == "tiny" ? 200 : 8;

  TrainingStep step(c, dtype_from_name(dtype));
  const double first_loss = step(), first = since_process_start();
  for (std::int64_t i = 1; i < warmup; ++i) step();
  std::vector<double> times;
  double loss = 0;
  for (std::int64_t i = 0; i < steps; ++i) {
    const double begin = now();
    loss = step();
    times.push_back(now() - begin);
  }
  check_losses(first_loss, loss, c);
  const Timing t = timing_of(std::move(times));
  fmt::print(
      "peer=tapestry{} config={} threads={} median_ms={:.2f} min_ms={:.2f} tokens_per_s={:.0f} peak_rss_mb={:.0f} "
      "first_step_s={:.2f} gflops={:.1f} loss={:.4f}->{:.4f}\n",
      dtype == "f32" ? "" : "-" + dtype, config, num_threads(), t.median * 1e3, t.min * 1e3,
      static_cast<double>(c.tokens()) / t.median, peak_rss_mb(), first, c.flops() / t.median * 1e-9, first_loss, loss);
  if (profiled) {
    Profile profile;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(steps, 20); ++i) step();
    fmt::print(stderr, "\nof {} steps:\n{}", std::min<std::int64_t>(steps, 20), profile.text());
    print_memory();
  }
  return 0;
}

}  // namespace tapestry::command
