// tapestry sample: writes text with a trained checkpoint.
#include <fmt/format.h>

#include <cstdio>

#include "autograd/autocast.h"
#include "commands.h"
#include "core/data/tokenizer.h"
#include "core/parallel.h"
#include "layers/models/generate.h"
#include "optim/training_state.h"
#include "train_optimizer.h"

namespace tapestry::command {

namespace {

std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  try {
    return tokenizer.encode(prompt.empty() ? "\n" : prompt);
  } catch (const Error& e) {
    if (prompt.empty()) return {0};  // a text of one line
    throw UsageError(fmt::format("--prompt: {}", e.what()));
  }
}

}  // namespace

int sample(const Arguments& args) {
  std::string checkpoint = "out/checkpoint.h5", prompt, dtype = "f32";
  std::int64_t tokens = 500;
  int threads = 0;
  SamplingOptions options;
  Options parser("tapestry sample", "Write text with a trained checkpoint.");
  parser.footer("example: tapestry sample --checkpoint out/checkpoint.h5 --prompt 'In the' --temperature 0.8");
  parser.add("checkpoint", checkpoint, "file that tapestry train wrote");
  parser.add("prompt", prompt, "text to continue; without it, starts on a new line");
  parser.add("tokens", tokens, "tokens to write", at_least(0));
  parser.add("temperature", options.temperature, "0: always the likeliest");
  parser.add("top_k", options.top_k, "only the k likeliest tokens; 0: all");
  parser.add("top_p", options.top_p, "only the likeliest that together have this probability");
  parser.add("seed", options.seed, "the same seed writes the same text");
  parser.add("dtype", dtype, "f32, bf16 or f16 arithmetic", one_of({"f32", "bf16", "f16"}));
  parser.add("threads", threads, "0: all processors", at_least(0));
  if (!parser.parse(args)) return 0;
  try {
    options.check();
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
  set_num_threads(threads);

  const RunState run = read_checkpoint(checkpoint);
  const auto description = run.config.find("tokenizer_description");
  TAP_CHECK(description != run.config.end(), checkpoint, ": holds no tokenizer; was it written by tapestry train?");
  const auto tokenizer = tokenizer_from_description(description->second);
  const GptConfig config = model_config(run.config, tokenizer->vocabulary());
  check_memory(config, 1, static_cast<double>(config.context));
  const std::vector<std::int32_t> ids = encode_prompt(*tokenizer, prompt);
  Gpt model(config, 0);
  AveragedModel averaged(model, ema_decay(run.config));
  load_training_state(checkpoint, averaged, nullptr);
  averaged.keep_average();

  fmt::print("{}", prompt);
  const Autocast scope(dtype_from_name(dtype));
  generate(model, ids, tokens, options, [&](std::int32_t id) {
    fmt::print("{}", tokenizer->decode({id}));
    return std::fflush(stdout) == 0;
  });
  fmt::print("\n");
  return 0;
}

}  // namespace tapestry::command
