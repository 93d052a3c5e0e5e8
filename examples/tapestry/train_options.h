// The options of `tapestry train`: nanoGPT's names, with its defaults for a CPU.
#pragma once

#include <string>

#include "arguments.h"
#include "layers/models/gpt.h"
#include "optim/grad_scaler.h"
#include "optim/training_state.h"

namespace tapestry::command {

struct TrainOptions {
  std::string data, out_dir = "out", config, tokenizer = "char";
  bool resume = false;
  std::int64_t n_layer = 4, n_head = 4, n_embd = 128, head_dim = 0, block_size = 64;
  double dropout = 0;
  bool bias = true;
  std::string norm = "pre", activation = "gelu_tanh";
  std::int64_t batch_size = 12, gradient_accumulation_steps = 1;
  double learning_rate = 1e-3, min_lr = 1e-4;
  std::int64_t max_iters = 2000, warmup_iters = 100, lr_decay_iters = -1;
  std::string optimizer = "adamw";
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.99, momentum = 0, ema = 0, grad_clip = 1.0;
  double clip_value = 0, skip_outliers = 0;
  std::string dtype = "f32", grad_scaler = "auto";
  std::int64_t eval_interval = 250, eval_iters = 20, log_interval = 10, sample_tokens = 120;
  std::uint64_t seed = 1337;
  int threads = 0;
  std::string time_budget = "0";
  std::string monitor = "none";
  bool detect_nan = false;

  std::string checkpoint() const { return out_dir + "/checkpoint.h5"; }
};

// Binds every member to an option, with the rule for its value.
void add_options(Options& options, TrainOptions& o);
// That the values fit each other, such as the heads and the width; throws UsageError naming the option.
void check(const TrainOptions& o);
// --monitor in parts; throws UsageError for any other text.
struct MonitorChoice {
  bool overflow = false, headroom = false;
  std::int64_t every = 0;  // steps; 0: one table at the end
};
MonitorChoice parse_monitor(const std::string& text);
// Throws if this machine's memory cannot hold so many copies of the model's parameters (4 in training: value, gradient,
// two moments) and the activations of a batch of `tokens`.
void check_memory(const GptConfig& config, int copies, double tokens);

// What --grad_scaler and --dtype say; not enabled where there is to be none. Throws UsageError.
GradScalerOptions scaler_options(const TrainOptions& o);

GptConfig model_config(const TrainOptions& o, std::int64_t vocabulary);
// The model a checkpoint's stored options describe.
GptConfig model_config(const std::map<std::string, std::string>& stored, std::int64_t vocabulary);

// With --resume the options of the checkpoint count, except where this call sets another value. Options that the
// weights or the data position depend on must not change; throws UsageError listing those that do.
void take_over(const std::map<std::string, std::string>& stored, const Options& options, Arguments& args);

// The run part of a checkpoint. If the file is damaged, the error names the checkpoint of the run before, if there is
// one beside it.
RunState read_checkpoint(const std::string& path);
// Where train keeps the checkpoint of the run before.
std::string previous_checkpoint(const std::string& path);

}  // namespace tapestry::command
