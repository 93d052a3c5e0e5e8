// tapestry sample: writes text with a trained checkpoint.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>

#include "commands.h"
#include "core/data/tokenizer.h"
#include "core/parallel.h"
#include "layers/models/generate.h"
#include "optim/training_state.h"
#include "train_options.h"

namespace tapestry::command {

int sample(const Arguments& args) {
  std::string checkpoint = "out/checkpoint.h5", prompt = "\n";
  std::int64_t tokens = 500;
  int threads = 0;
  SamplingOptions options;
  CLI::App app("Write text with a trained checkpoint.", "tapestry sample");
  app.add_option("--checkpoint", checkpoint, "file that tapestry train wrote")->capture_default_str();
  app.add_option("--prompt", prompt, "text to continue (default: a new line)");
  app.add_option("--tokens", tokens, "tokens to write")->capture_default_str();
  app.add_option("--temperature", options.temperature, "0: always the likeliest")->capture_default_str();
  app.add_option("--top_k", options.top_k, "only the k likeliest tokens; 0: all")->capture_default_str();
  app.add_option("--top_p", options.top_p, "only the likeliest tokens that together reach p")->capture_default_str();
  app.add_option("--seed", options.seed, "the same seed writes the same text")->capture_default_str();
  app.add_option("--threads", threads, "0: all processors")->capture_default_str();
  if (!parse(app, args)) return 0;
  if (tokens < 0) throw UsageError(fmt::format("--tokens must be 0 or more, not {}", tokens));
  if (threads < 0) throw UsageError(fmt::format("--threads must be 0 or more, not {}", threads));
  if (prompt.empty()) throw UsageError("--prompt must not be empty; leave it out to start from a new line");
  try {
    options.check();
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
  set_num_threads(threads);

  const RunState run = read_run_state(checkpoint);
  const auto description = run.config.find("tokenizer_description");
  TAP_CHECK(description != run.config.end(), checkpoint, ": holds no tokenizer; was it written by tapestry train?");
  const auto tokenizer = tokenizer_from_description(description->second);
  Gpt model(model_config(run.config, tokenizer->vocabulary()), 0);
  load_training_state(checkpoint, model, nullptr);

  const std::vector<std::int32_t> ids = tokenizer->encode(prompt);
  fmt::print("{}", prompt);
  generate(model, ids, tokens, options, [&](std::int32_t id) {
    fmt::print("{}", tokenizer->decode({id}));
    return std::fflush(stdout) == 0;
  });
  fmt::print("\n");
  return 0;
}

}  // namespace tapestry::command
