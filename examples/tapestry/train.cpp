// tapestry train: text file in, checkpoint out.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "commands.h"
#include "core/data/token_dataset.h"
#include "core/data/tokenizer.h"
#include "core/io/hash.h"
#include "core/parallel.h"
#include "layers/models/generate.h"
#include "metrics_log.h"
#include "optim/trainer.h"
#include "progress.h"
#include "train_options.h"

namespace tapestry::command {

namespace {

Trainer* running = nullptr;  // for the signal handler

extern "C" void on_signal(int) {
  if (running) running->interrupt();
  std::signal(SIGINT, SIG_DFL);  // a second Ctrl-C ends at once
}

std::unique_ptr<Tokenizer> make_tokenizer(const TrainOptions& o, const std::string& text) {
  if (o.tokenizer == "byte") return std::make_unique<ByteTokenizer>();
  return std::make_unique<CharTokenizer>(text);
}

// Everything a run needs, built in the order in which it can fail.
class Run {
 public:
  Run(const TrainOptions& options, std::map<std::string, std::string> values)
      : o_(options),
        text_(read_text_file(o_.data)),
        tokenizer_(make_tokenizer(o_, text_)),
        split_(split_tokens(tokenizer_->encode(text_), 0.1, o_.block_size)),
        train_(split_.train, o_.batch_size, o_.block_size, derive_seed(o_.seed, "data")),
        validation_(split_.validation, o_.batch_size, o_.block_size, 0),
        batch_(train_.batch(0)),
        model_(model_config(o_, tokenizer_->vocabulary()), o_.seed),
        optimizer_(parameters(model_), {.beta1 = o_.beta1, .beta2 = o_.beta2, .weight_decay = o_.weight_decay}),
        trainer_(model_, optimizer_, schedule(), trainer_options(), functions()) {
    run_state_.config = std::move(values);
    run_state_.config["tokenizer_description"] = tokenizer_->description();
    run_state_.config["text_hash"] = hash_hex(std::as_bytes(std::span(text_)));
  }

  int execute() {
    prepare_folder();
    print_header();
    if (o_.resume) load();
    progress_.emplace(trainer_.current_step(), o_.max_iters, o_.log_interval);
    metrics_.emplace(o_.out_dir + "/metrics.jsonl", o_.resume, trainer_.current_step());
    running = &trainer_;
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    const Trainer::Stop stop = trainer_.run();
    running = nullptr;
    progress_->finish();
    return finish(stop);
  }

 private:
  Schedule schedule() const {
    const std::int64_t decay = o_.lr_decay_iters < 0 ? o_.max_iters : o_.lr_decay_iters;
    return warmup(o_.warmup_iters,
                  cosine(o_.learning_rate, o_.min_lr, std::max<std::int64_t>(decay - o_.warmup_iters, 1)));
  }

  TrainerOptions trainer_options() const {
    return {.max_steps = o_.max_iters,
            .accumulate = o_.gradient_accumulation_steps,
            .clip_norm = o_.grad_clip,
            .eval_every = o_.eval_interval,
            .seed = o_.seed,
            .time_budget_seconds = parse_duration("time_budget", o_.time_budget)};
  }

  Trainer::Functions functions() {
    return {.micro_loss =
                [this](std::int64_t i) {
                  train_.fill(i, batch_);
                  const CrossEntropy loss = model_.loss(batch_.inputs, batch_.targets);
                  return LossResult{loss.loss, loss.valid_tokens};
                },
            .valid_tokens = {},
            .evaluate = [this] { return loss_on(validation_, o_.eval_iters); },
            .on_step = [this](const StepInfo& info) { on_step(info); },
            .on_eval = [this](std::int64_t step, double loss) { on_eval(step, loss); }};
  }

  double loss_on(const TokenBatches& batches, std::int64_t count) {
    const bool training = model_.training();
    model_.eval();
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const Batch batch = batches.evaluation_batch(i);
      sum += model_.loss(batch.inputs, batch.targets).loss.item();
    }
    model_.train(training);
    return sum / static_cast<double>(count);
  }

  void on_step(const StepInfo& info) {
    last_loss_ = info.loss;
    progress_->step(info.step, info.loss, info.lr, info.tokens, info.seconds);
    if (info.skipped) progress_->line(fmt::format("step {}: the gradient is not finite; step skipped", info.step));
    if (info.step % o_.log_interval != 0 && info.step != o_.max_iters) return;
    metrics_->train(info.step, info.loss, info.lr, info.grad_norm, static_cast<double>(info.tokens) / info.seconds,
                    info.skipped);
  }

  void on_eval(std::int64_t step, double loss) {
    val_loss_ = loss;
    const double seconds = elapsed();
    progress_->highlight(fmt::format("step {:>6}  val_loss {:.4f}  elapsed {}", step, loss, human_duration(seconds)));
    metrics_->evaluation(step, loss, seconds);
    if (o_.sample_tokens > 0) progress_->line(text_sample());
    try {
      save();
    } catch (const Error& e) {
      // Training goes on: the last good checkpoint is still there, and the disk may have room again at the next one.
      progress_->line(fmt::format("warning: not saved at step {}: {}", step, e.what()));
    }
  }

  std::string text_sample() {
    std::vector<std::int32_t> ids;
    const std::int32_t start = split_.validation.front();
    generate(model_, {&start, 1}, o_.sample_tokens, {.temperature = 0.8, .top_k = 0, .top_p = 1, .seed = o_.seed},
             [&](std::int32_t id) {
               ids.push_back(id);
               return true;
             });
    std::string indented = "    | ";
    for (char c : tokenizer_->decode(ids)) {
      indented += c;
      if (c == '\n') indented += "    | ";
    }
    return indented;
  }

  void prepare_folder() const {
    std::error_code error;
    std::filesystem::create_directories(o_.out_dir, error);
    TAP_CHECK(std::filesystem::is_directory(o_.out_dir), "out_dir: '", o_.out_dir,
              "' cannot be made into a folder: ", error ? error.message() : "a file of that name exists");
    const std::string path = o_.checkpoint();
    if (o_.resume || !std::filesystem::exists(path)) return;
    const std::string kept = o_.out_dir + "/checkpoint.previous.h5";
    std::filesystem::rename(path, kept, error);
    TAP_CHECK(!error, path, ": cannot be moved away: ", error.message());
    fmt::print("{} is from an earlier run: kept as {} (--resume would continue it)\n", path, kept);
  }

  void print_header() {
    fmt::print("tapestry {}  {}  {} threads  seed {}\n", kVersion, kArch, num_threads(), o_.seed);
    fmt::print("text: {} tokens ({} train, {} validation), vocabulary {}\n",
               split_.train.size() + split_.validation.size(), split_.train.size(), split_.validation.size(),
               tokenizer_->vocabulary());
    fmt::print("model: {} layers, {} heads, {} wide, {} of context: {} parameters\n", o_.n_layer, o_.n_head, o_.n_embd,
               o_.block_size, parameter_count(model_));
    std::fflush(stdout);
  }

  void load() {
    const RunState stored = trainer_.load(o_.checkpoint());
    const auto hash = stored.config.find("text_hash");
    TAP_CHECK(hash == stored.config.end() || hash->second == run_state_.config["text_hash"], o_.data,
              ": is not the text that ", o_.checkpoint(), " was trained on; --data must name that text");
    fmt::print("resumed {} at step {}\n", o_.checkpoint(), trainer_.current_step());
  }

  void save() {
    run_state_.numbers["val_loss"] = val_loss_;
    trainer_.save(o_.checkpoint(), run_state_);
  }

  int finish(Trainer::Stop stop) {
    constexpr std::int64_t kFinalBatches = 100;
    const std::int64_t batches = std::max(o_.eval_iters, kFinalBatches);
    val_loss_ = loss_on(validation_, batches);
    const double train_loss = loss_on(train_, batches);
    save();
    const std::int64_t steps = trainer_.current_step();
    if (stop != Trainer::Stop::finished)
      fmt::print("{} after {} of {} steps; continue with: tapestry train --resume --out_dir {}\n",
                 stop == Trainer::Stop::interrupted ? "interrupted" : "time budget used up", steps, o_.max_iters,
                 o_.out_dir);
    fmt::print("result: steps={} train_loss={:.4f} val_loss={:.4f} tokens_per_s={:.0f} weights_hash={} checkpoint={}\n",
               steps, train_loss, val_loss_, progress_->tokens_per_second(), weights_hash(model_), o_.checkpoint());
    return stop == Trainer::Stop::interrupted ? 130 : 0;
  }

  double elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  TrainOptions o_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string text_;
  std::unique_ptr<Tokenizer> tokenizer_;
  TokenSplit split_;
  TokenBatches train_, validation_;
  Batch batch_;
  Gpt model_;
  AdamW optimizer_;
  Trainer trainer_;
  RunState run_state_;
  std::optional<Progress> progress_;
  std::optional<MetricsLog> metrics_;
  double val_loss_ = 0, last_loss_ = 0;
};

}  // namespace

int train(const Arguments& given) {
  Arguments args = given;
  TrainOptions options;
  std::map<std::string, std::string> values;
  // With --resume the second round starts from the checkpoint's options.
  for (int round = 0;; ++round) {
    options = TrainOptions();
    Options parser("tapestry train", "Train a small GPT on a text file.");
    add_options(parser, options);
    if (!parser.parse(args)) return 0;
    values = parser.values();
    if (round == 1 || !options.resume) break;
    TAP_CHECK(std::filesystem::exists(options.checkpoint()), options.checkpoint(),
              ": does not exist, so there is nothing to resume; leave out --resume to start");
    take_over(read_run_state(options.checkpoint()).config, parser, args);
  }
  if (options.data.empty()) throw UsageError("--data is missing: name the UTF-8 text file to learn from");
  values["data"] = options.data = std::filesystem::absolute(options.data).string();
  check(options);
  set_num_threads(options.threads);
  return Run(options, std::move(values)).execute();
}

}  // namespace tapestry::command
