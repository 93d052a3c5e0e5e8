#include "train_options.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "train_optimizer.h"

namespace tapestry::command {

void add_options(Options& options, TrainOptions& o) {
  options.group("Files");
  options.add("data", o.data, "UTF-8 text to learn from");
  options.add("out_dir", o.out_dir, "folder for checkpoint.h5 and metrics.jsonl");
  options.add_config(o.config);
  options.add_flag("resume", o.resume, "continue from out_dir/checkpoint.h5");
  options.add("tokenizer", o.tokenizer, "char or byte", one_of({"char", "byte"}));
  options.group("Model");
  options.add("n_layer", o.n_layer, "transformer blocks", at_least(1));
  options.add("n_head", o.n_head, "attention heads; must divide n_embd unless head_dim is set", at_least(1));
  options.add("n_embd", o.n_embd, "width", at_least(1));
  options.add("head_dim", o.head_dim, "width of a head; 0 means n_embd / n_head", at_least(0));
  options.add("block_size", o.block_size, "tokens of context", at_least(1));
  options.add("dropout", o.dropout, "share of activations dropped while training", from_to_below(0, 1));
  options.add("bias", o.bias, "biases in linear layers");
  options.add("norm", o.norm, "pre or post: where LayerNorm sits", one_of({"pre", "post"}));
  options.add("activation", o.activation, "gelu_tanh, gelu, relu, silu, tanh or sigmoid");
  options.group("Training");
  options.add("batch_size", o.batch_size, "sequences in a micro-batch", at_least(1));
  options.add("gradient_accumulation_steps", o.gradient_accumulation_steps, "micro-batches in a step", at_least(1));
  options.add("max_iters", o.max_iters, "steps", at_least(1));
  options.add("learning_rate", o.learning_rate, "peak rate; optimizers other than adamw have their own", at_least(0));
  options.add("min_lr", o.min_lr, "rate at the end of the decay", at_least(0));
  options.add("warmup_iters", o.warmup_iters, "steps of linear warm-up", at_least(0));
  options.add("lr_decay_iters", o.lr_decay_iters, "steps until min_lr; -1 means max_iters", at_least(-1));
  add_optimizer_options(options, o);
  options.add("weight_decay", o.weight_decay, "on matrices only", at_least(0));
  options.add("beta1", o.beta1, "first moment of adamw, adam, lion, lamb and muon", from_to_below(0, 1));
  options.add("beta2", o.beta2, "second moment of these", from_to_below(0, 1));
  options.add("grad_clip", o.grad_clip, "largest gradient norm; 0 means no clipping", at_least(0));
  options.add("clip_value", o.clip_value, "largest element of a gradient; 0 means no clipping", at_least(0));
  options.add("skip_outliers", o.skip_outliers, "skip steps with a z-score of loss or norm above it; 0: none",
              at_least(0));
  options.add("dtype", o.dtype, "f32, bf16 or f16 in the forward pass; weights stay f32",
              one_of({"f32", "bf16", "f16"}));
  options.add("grad_scaler", o.grad_scaler, "none, dynamic[:SCALE], static[:SCALE]; auto: for f16");
  options.add("seed", o.seed, "of weights, batches and dropout");
  options.group("Run");
  options.add("threads", o.threads, "0 means all processors; results do not depend on it", at_least(0));
  options.add("time_budget", o.time_budget, "stop early after 120s, 2m or 1h; 0 means no limit");
  options.add("eval_interval", o.eval_interval, "steps between evaluations", at_least(1));
  options.add("eval_iters", o.eval_iters, "batches of an evaluation (at least 100 at the end)", at_least(1));
  options.add("log_interval", o.log_interval, "steps between log lines", at_least(1));
  options.add("sample_tokens", o.sample_tokens, "tokens of the sample at an evaluation; 0 means none", at_least(0));
  options.add("monitor", o.monitor, "watches every op: none, overflow, headroom or headroom:STEPS");
  options.add_flag("detect_nan", o.detect_nan, "stop at NaN or inf and name the op where it began");
}

void check(const TrainOptions& o) {
  if (o.min_lr > o.learning_rate)
    throw UsageError(fmt::format("--min_lr must be at most --learning_rate, {}, not {}", o.learning_rate, o.min_lr));
  parse_duration("time_budget", o.time_budget);
  parse_monitor(o.monitor);
  scaler_options(o);
  try {
    model_config(o, 1).check();
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
}

MonitorChoice parse_monitor(const std::string& text) {
  if (text == "none") return {};
  if (text == "overflow") return {.overflow = true};
  const std::string word = "headroom", every = text.substr(std::min(text.size(), word.size()));
  const bool is_number = every.size() > 1 && every.size() < 18 && every[0] == ':' &&
                         every.find_first_not_of("0123456789", 1) == std::string::npos;
  if (text.rfind(word, 0) == 0 && (every.empty() || is_number)) {
    const std::int64_t steps = every.empty() ? 0 : std::stoll(every.substr(1));
    if (every.empty() || steps > 0) return {.headroom = true, .every = steps};
  }
  throw UsageError("--monitor must be none, overflow, headroom or headroom:STEPS, not '" + text + "'");
}

GradScalerOptions scaler_options(const TrainOptions& o) {
  const std::string& text = o.grad_scaler;
  const std::string kind = text.substr(0, text.find(':'));
  if (text == "auto") return {.enabled = o.dtype == "f16"};
  if (text == "none") return {.enabled = false};
  const auto refuse = [&](const std::string& why) {
    throw UsageError(
        fmt::format("--grad_scaler must be auto, none, dynamic, static, dynamic:SCALE or static:SCALE, "
                    "with a finite SCALE above 0, not {}{}",
                    text, why));
  };
  if (kind != "dynamic" && kind != "static") refuse("");
  GradScalerOptions result{.dynamic = kind == "dynamic"};
  if (kind != text) {
    const char *first = text.data() + kind.size() + 1, *last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, result.init_scale);
    if (error != std::errc() || end != last) refuse("");
  }
  try {
    GradScaler{result};
  } catch (const Error& e) {
    refuse(text_of(" (", e.what(), ")"));
  }
  return result;
}

void check_memory(const GptConfig& c, int copies, double tokens) {
  const auto real = [](std::int64_t count) { return static_cast<double>(count); };
  const double width = real(c.width), layers = real(c.layers), inner = real(c.head_dim) * real(c.heads);
  const double of_block = 4 * width * (c.head_dim > 0 ? inner : width) + 8 * width * width + 13 * width;
  const double parameters = (real(c.vocabulary) + real(c.context)) * width + layers * of_block;
  const double activations = tokens * (8 * width * layers + real(c.vocabulary));
  const double needed = sizeof(float) * (copies * parameters + activations);
  const double present = real(sysconf(_SC_PHYS_PAGES)) * real(sysconf(_SC_PAGE_SIZE));
  constexpr double kGigabyte = 1e9;
  TAP_CHECK(needed < present, fmt::format("a model of {:.3g} parameters and batches of {:.0f} tokens need at least "
                                          "{:.1f} GB of memory, and this machine has {:.1f}; use smaller ones",
                                          parameters, tokens, needed / kGigabyte, present / kGigabyte));
}

GptConfig model_config(const TrainOptions& o, std::int64_t vocabulary) {
  GptConfig c;
  c.vocabulary = vocabulary;
  c.context = o.block_size;
  c.layers = o.n_layer;
  c.heads = o.n_head;
  c.width = o.n_embd;
  c.head_dim = o.head_dim;
  c.dropout = o.dropout;
  c.bias = o.bias;
  c.norm = o.norm == "pre" ? NormPlacement::pre : NormPlacement::post;
  c.activation = activation_from_name(o.activation);
  return c;
}

GptConfig model_config(const std::map<std::string, std::string>& stored, std::int64_t vocabulary) {
  TrainOptions o;
  Options options("", "");
  add_options(options, o);
  Arguments args;
  for (const auto& [name, value] : stored)
    if (options.contains(name) && name != "config") args.push_back("--" + name + "=" + value);
  options.parse(args);
  return model_config(o, vocabulary);
}

void take_over(const std::map<std::string, std::string>& stored, const Options& options, Arguments& args) {
  constexpr const char* kFixed[] = {"n_layer",    "n_head",      "n_embd",   "head_dim",
                                    "block_size", "bias",        "norm",     "activation",
                                    "batch_size", "tokenizer",   "seed",     "gradient_accumulation_steps",
                                    "dtype",      "grad_scaler", "optimizer"};
  constexpr const char* kOfThisCall[] = {"out_dir", "resume", "config", "time_budget", "monitor", "detect_nan"};
  const auto is_in = [](const auto& list, const std::string& name) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
  };
  const auto now = options.values();
  std::string changed;
  Arguments inherited;
  for (const auto& [name, value] : stored) {
    if (!options.contains(name) || is_in(kOfThisCall, name)) continue;
    if (!options.given(name))
      inherited.push_back("--" + name + "=" + value);
    else if (is_in(kFixed, name) && now.at(name) != value)
      changed += fmt::format("{}{} (was {}, now {})", changed.empty() ? "" : ", ", name, value, now.at(name));
  }
  if (!changed.empty())
    throw UsageError(fmt::format("--resume cannot change {}; leave it out, or start anew in another out_dir", changed));
  args.insert(args.begin(), inherited.begin(), inherited.end());
}

std::string previous_checkpoint(const std::string& path) {
  return std::filesystem::path(path).replace_extension(".previous.h5").string();
}

RunState read_checkpoint(const std::string& path) {
  try {
    return read_run_state(path);
  } catch (const Error& e) {
    const std::string previous = previous_checkpoint(path);
    if (!std::filesystem::exists(path) || !std::filesystem::exists(previous)) throw;
    fail(e.what(), "; the checkpoint of the run before is still there: ", previous);
  }
}

}  // namespace tapestry::command
