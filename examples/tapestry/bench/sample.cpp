// tapestry bench sample: tokens a second with the key-value cache, beside what reading the weights allows.
#include <fmt/format.h>

#include "autograd/autocast.h"
#include "benchmarks.h"
#include "core/parallel.h"
#include "measure.h"
#include "step.h"

namespace tapestry::command {

int bench_sample(const Arguments& args) {
  std::string config = "g124", dtype = "f32";
  int threads = 0;
  std::int64_t batch = 1;
  Options parser("tapestry bench sample", "Time the generation of single tokens with the key-value cache.");
  parser.add("config", config, "tiny, c384 or g124 (GPT-2 124M)");
  parser.add("threads", threads, "0: as many as there are processors");
  parser.add("batch", batch, "sequences side by side");
  parser.add("dtype", dtype, "f32, bf16 or f16 arithmetic; reads half the bytes with 16 bits",
             one_of({"f32", "bf16", "f16"}));
  if (!parser.parse(args)) return 0;
  if (batch < 1) throw UsageError("--batch must be at least 1");
  const StepConfig c = step_config(config);
  set_num_threads(threads);
  Gpt model({.vocabulary = c.vocabulary, .context = c.time, .layers = c.layers, .heads = c.heads, .width = c.width}, 1);
  const NoGrad no_grad;
  const Autocast scope(dtype_from_name(dtype));
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
  // The bound: every weight is read once, but of the positions only one row.
  double bytes = 0;
  const std::vector<NamedParameter> all = parameters(model);
  const Timing read = time_calls([&] {
    bytes = 0;
    for (const NamedParameter& p : all) {
      if (p.parameter == &model.position_embedding.weight) continue;
      sum_once(p.parameter->value());
      bytes += static_cast<double>(p.parameter->value().bytes());
    }
  });
  fmt::print("config={} batch={} threads={} median_ms={:.3f} tokens_per_s={:.1f}\n", config, batch, num_threads(),
             t.median * 1e3, static_cast<double>(batch) / t.median);
  fmt::print("reading the {:.1f} MB of weights alone takes {:.3f} ms ({:.1f} GB/s): {:.0f}% of that speed\n",
             bytes * 1e-6, read.median * 1e3, bytes / read.median * 1e-9, 100 * read.median / t.median);
  return 0;
}

}  // namespace tapestry::command
