// tapestry bench sample: tokens a second with the key-value cache, beside what reading the weights allows.
#include <fmt/format.h>

#include "benchmarks.h"
#include "core/parallel.h"
#include "measure.h"
#include "step.h"

namespace tapestry::command {

int bench_sample(const Arguments& args) {
  std::string config = "g124";
  int threads = 0;
  std::int64_t batch = 1;
  Options parser("tapestry bench sample", "Time the generation of single tokens with the key-value cache.");
  parser.add("config", config, "tiny, c384 or g124 (GPT-2 124M)");
  parser.add("threads", threads, "0: as many as there are processors");
  parser.add("batch", batch, "sequences side by side");
  if (!parser.parse(args)) return 0;
  if (batch < 1) throw UsageError("--batch must be at least 1");
  const StepConfig c = step_config(config);
  set_num_threads(threads);
  const Peak peak = measure_peak();
  fmt::print("{}\n", text(peak));

  Gpt model({.vocabulary = c.vocabulary, .context = c.time, .layers = c.layers, .heads = c.heads, .width = c.width}, 1);
  const NoGrad no_grad;
  const EvalScope eval(model);
  const Tensor token = zeros({batch, 1}, DType::i32);
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    Gpt::Cache cache = model.make_cache(batch);
    for (std::int64_t t = 0; t < c.time; ++t) {
      const double begin = now();
      model.extend(token, cache);
      if (round > 0) times.push_back(now() - begin);
    }
  }
  const Timing t = timing_of(std::move(times));
  std::int64_t weights = 0;
  for (const NamedParameter& p : parameters(model)) weights += p.parameter->numel();
  weights -= model.position_embedding.weight.numel();  // one row of which is read
  const double bytes = 4.0 * static_cast<double>(weights), limit = peak.read_gbs * 1e9 / bytes;
  fmt::print(
      "config={} batch={} threads={} median_ms={:.3f} tokens_per_s={:.1f}; reading {:.1f} MB of weights allows {:.1f} "
      "steps/s: {:.0f} %\n",
      config, batch, num_threads(), t.median * 1e3, static_cast<double>(batch) / t.median, bytes * 1e-6, limit,
      100 / t.median / limit);
  return 0;
}

}  // namespace tapestry::command
