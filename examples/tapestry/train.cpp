// tapestry train: text file in, checkpoint out.
#include <fmt/format.h>

#include <unistd.h>
#include <atomic>
#include <cerrno>
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

// For the signal handler: the run that it stops, and the signal that came.
std::atomic<Trainer*> running = nullptr;
volatile std::sig_atomic_t received = 0;

extern "C" void on_signal(int signal) {
  constexpr char kMessage[] = "\nstopping after this step; once more ends at once, without saving\n";
  received = signal;
  if (Trainer* trainer = running) trainer->interrupt();
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
}

std::unique_ptr<Tokenizer> make_tokenizer(const TrainOptions& o, const std::string& text) {
  if (o.tokenizer == "byte") return std::make_unique<ByteTokenizer>();
  return std::make_unique<CharTokenizer>(text);
}

// For a shell: in quotes where it needs them.
std::string shell_word(const std::string& word) {
  const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+:@%,";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string result = "'";
  for (char c : word) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

// What a terminal shows as it is: an untrained model of bytes also writes control characters and broken UTF-8.
std::string printable(std::string text) {
  bool valid = true;
  try {
    check_utf8(text, "sample");
  } catch (const Error&) {
    valid = false;
  }
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f || (byte >= 0x80 && !valid)) c = '.';
  }
  return text;
}

std::string plural(std::int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

constexpr double kValidationFraction = 0.1;

TokenSplit split(std::vector<std::int32_t> tokens, const TrainOptions& o) {
  const auto total = static_cast<std::int64_t>(tokens.size());
  try {
    return split_tokens(std::move(tokens), kValidationFraction, o.block_size);
  } catch (const Error&) {
    const auto part = static_cast<std::int64_t>(kValidationFraction * static_cast<double>(total));
    throw UsageError(
        fmt::format("{} has {}; its last tenth, kept for validation, is too short for --block_size {}; "
                    "use a longer text{}",
                    o.data, plural(total, "token"), o.block_size,
                    part < 2 ? "" : fmt::format(" or a block_size of at most {}", part - 1)));
  }
}

using Config = std::map<std::string, std::string>;

// A file name may be any bytes, but what a checkpoint cannot hold would only show when it is saved.
void check_storable(const Config& values) {
  for (const auto& [name, value] : values) {
    try {
      check_utf8(value, "the value of --" + name);
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
  }
}

void check_same_text(const Config& stored, const Config& now, const TrainOptions& o) {
  const auto hash = stored.find("text_hash");
  TAP_CHECK(hash == stored.end() || hash->second == now.at("text_hash"), o.data, ": is not the text that ",
            o.checkpoint(), " was trained on; --data must name that text, or start anew in another --out_dir");
}

// Everything a run needs, built in the order in which it can fail.
class Run {
 public:
  // `values` are the options as the checkpoint will keep them, `stored` those of the checkpoint to resume from.
  Run(const TrainOptions& options, Config values, const Config& stored)
      : o_(options),
        text_(read_text_file(o_.data)),
        run_state_(describe(std::move(values), stored)),
        tokenizer_(make_tokenizer(o_, text_)),
        split_(split(tokenizer_->encode(text_), o_)),
        model_config_(fitting_model_config()),
        train_(split_.train, o_.batch_size, o_.block_size, derive_seed(o_.seed, "data")),
        validation_(split_.validation, o_.batch_size, o_.block_size, 0),
        batch_(train_.batch(0)),
        model_(model_config_, o_.seed),
        scaler_(scaler_options(o_)),
        optimizer_(parameters(model_), {.beta1 = o_.beta1, .beta2 = o_.beta2, .weight_decay = o_.weight_decay}),
        trainer_(model_, optimizer_, schedule(), trainer_options(), functions()) {
    run_state_.config["tokenizer_description"] = tokenizer_->description();
  }

  int execute() {
    prepare_folder();
    running = &trainer_;
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    print_header();
    if (o_.resume) load();
    progress_.emplace(trainer_.current_step(), o_.max_iters, o_.log_interval);
    metrics_.emplace(o_.out_dir + "/metrics.jsonl", o_.resume, trainer_.current_step(),
                     [this](const std::string& text) { progress_->line(text); });
    return finish(run());
  }

 private:
  RunState describe(Config values, const Config& stored) const {
    values["text_hash"] = hash_hex(std::as_bytes(std::span(text_)));
    check_same_text(stored, values, o_);
    return {.config = std::move(values)};
  }

  GptConfig fitting_model_config() const {
    const GptConfig config = model_config(o_, tokenizer_->vocabulary());
    check_memory(config, 4, static_cast<double>(o_.batch_size) * static_cast<double>(o_.block_size));
    return config;
  }

  Trainer::Stop run() {
    if (trainer_.current_step() >= o_.max_iters) {
      print_line(fmt::format("step {} is the end already; a higher --max_iters trains on", trainer_.current_step()));
      return Trainer::Stop::finished;
    }
    const Trainer::Stop stop = trainer_.run();
    progress_->finish();
    return stop;
  }

  Schedule schedule() const {
    const std::int64_t decay = o_.lr_decay_iters < 0 ? o_.max_iters : o_.lr_decay_iters;
    return warmup(o_.warmup_iters,
                  cosine(o_.learning_rate, o_.min_lr, std::max<std::int64_t>(decay - o_.warmup_iters, 1)));
  }

  TrainerOptions trainer_options() {
    if (o_.skip_outliers > 0) outliers_.emplace(OutlierOptions{.threshold = o_.skip_outliers});
    return {.max_steps = o_.max_iters,
            .accumulate = o_.gradient_accumulation_steps,
            .clip_norm = o_.grad_clip,
            .clip_value = o_.clip_value,
            .scaler = &scaler_,
            .outliers = outliers_ ? &*outliers_ : nullptr,
            .eval_every = o_.eval_interval,
            .seed = o_.seed,
            .time_budget_seconds = parse_duration("time_budget", o_.time_budget)};
  }

  Trainer::Functions functions() {
    return {.micro_loss =
                [this](std::int64_t i) {
                  train_.fill(i, batch_);
                  const CrossEntropy loss = loss_in_dtype(batch_);
                  return LossResult{loss.loss, loss.valid_tokens};
                },
            .valid_tokens = {},
            .evaluate = [this] { return loss_on(validation_, o_.eval_iters); },
            .on_step = [this](const StepInfo& info) { on_step(info); },
            .on_eval = [this](std::int64_t step, double loss) { on_eval(step, loss); }};
  }

  // Every forward pass of training and evaluation: the one place that --dtype concerns.
  CrossEntropy loss_in_dtype(const Batch& batch) const { return model_.loss(batch.inputs, batch.targets); }

  double loss_on(const TokenBatches& batches, std::int64_t count) {
    const EvalScope eval_scope(model_);
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const Batch batch = batches.evaluation_batch(i);
      sum += loss_in_dtype(batch).loss.item();
    }
    return sum / static_cast<double>(count);
  }

  void on_step(const StepInfo& info) {
    progress_->step(info);
    if (info.skipped)
      progress_->line(fmt::format("step {}: {}; step skipped{}", info.step, reason_text(info.reason),
                                  scaler_.enabled() ? fmt::format(", the scale is now {}", scaler_.scale()) : ""));
    if (info.step % o_.log_interval == 0 || info.step == o_.max_iters) metrics_->train(info);
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
    for (char c : printable(tokenizer_->decode(ids))) {
      indented += c;
      if (c == '\n') indented += "    | ";
    }
    return indented;
  }

  // The results of an earlier run stay, under another name, until the run after this one.
  void prepare_folder() const {
    namespace fs = std::filesystem;
    std::error_code error;
    fs::create_directories(o_.out_dir, error);
    TAP_CHECK(!error && fs::is_directory(o_.out_dir), "--out_dir: '", o_.out_dir,
              "' cannot be made into a folder: ", error.message());
    const std::string path = o_.checkpoint(), kept = previous_checkpoint(path), metrics = o_.out_dir + "/metrics";
    if (o_.resume || !fs::exists(path)) return;
    try {
      read_run_state(path);
    } catch (const Error&) {
      return print_line(fmt::format("{} is from an earlier run, but damaged: it will be replaced", path));
    }
    fs::rename(path, kept, error);
    TAP_CHECK(!error, path, ": cannot be renamed to ", kept, ": ", error.message());
    fs::rename(metrics + ".jsonl", metrics + ".previous.jsonl", error);
    print_line(fmt::format("{} is from an earlier run: kept as {} (--resume would have continued it)", path, kept));
  }

  void print_header() {
    print_line(fmt::format("tapestry {}, {}, {}, seed {}", kVersion, kArch, plural(num_threads(), "thread"), o_.seed));
    print_line(fmt::format("text: {} tokens ({} train, {} validation), vocabulary {}",
                           split_.train.size() + split_.validation.size(), split_.train.size(),
                           split_.validation.size(), tokenizer_->vocabulary()));
    print_line(fmt::format("model: {}, {}, {} wide, {} of context: {} parameters", plural(o_.n_layer, "layer"),
                           plural(o_.n_head, "head"), o_.n_embd, o_.block_size, parameter_count(model_)));
    if (o_.dtype != "f32" || scaler_.enabled())
      print_line(fmt::format(
          "precision: {}, {}", o_.dtype,
          scaler_.enabled()
              ? fmt::format("{} {}", scaler_options(o_).dynamic ? "dynamic loss scale from" : "static loss scale",
                            scaler_options(o_).init_scale)
              : "no loss scale"));
  }

  void load() {
    trainer_.load(o_.checkpoint());
    print_line(fmt::format("resumed {} at step {}", o_.checkpoint(), trainer_.current_step()));
  }

  void save() {
    run_state_.numbers["val_loss"] = val_loss_;
    trainer_.save(o_.checkpoint(), run_state_);
  }

  int finish(Trainer::Stop stop) {
    save();  // before the last evaluation, which takes its time
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    running = nullptr;
    const std::int64_t steps = trainer_.current_step();
    if (stop != Trainer::Stop::finished)
      print_line(fmt::format("{} after {} of {} steps, saved; continue with: {} train --resume --out_dir {}",
                             stop == Trainer::Stop::interrupted ? "interrupted" : "time budget used up", steps,
                             o_.max_iters, shell_word(program_invocation_name), shell_word(o_.out_dir)));
    constexpr std::int64_t kFinalBatches = 100;
    const std::int64_t batches = std::max(o_.eval_iters, kFinalBatches);
    const double train_loss = loss_on(train_, batches), val_loss = loss_on(validation_, batches);
    print_line(fmt::format(
        "result: steps={} train_loss={:.4f} val_loss={:.4f} tokens_per_s={:.0f} weights_hash={} checkpoint={}", steps,
        train_loss, val_loss, progress_->tokens_per_second(), weights_hash(model_), o_.checkpoint()));
    return stop == Trainer::Stop::interrupted ? 128 + received : 0;
  }

  double elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  TrainOptions o_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string text_;
  RunState run_state_;
  std::unique_ptr<Tokenizer> tokenizer_;
  TokenSplit split_;
  GptConfig model_config_;
  TokenBatches train_, validation_;
  Batch batch_;
  Gpt model_;
  GradScaler scaler_;
  std::optional<OutlierFilter> outliers_;
  AdamW optimizer_;
  Trainer trainer_;
  std::optional<Progress> progress_;
  std::optional<MetricsLog> metrics_;
  double val_loss_ = 0;
};

}  // namespace

int train(const Arguments& given) {
  Arguments args = given;
  TrainOptions options;
  Config values, stored;
  // With --resume the second round starts from the checkpoint's options.
  for (int round = 0;; ++round) {
    options = TrainOptions();
    Options parser("tapestry train", "Train a small GPT on a text file.");
    parser.footer("example: tapestry train --data book.txt --max_iters 1000 --time_budget 2m");
    add_options(parser, options);
    if (!parser.parse(args)) return 0;
    values = parser.values();
    if (round == 1 || !options.resume) break;
    TAP_CHECK(std::filesystem::exists(options.checkpoint()), options.checkpoint(),
              ": does not exist, so there is nothing to resume; leave out --resume to start");
    stored = read_checkpoint(options.checkpoint()).config;
    take_over(stored, parser, args);
  }
  if (options.data.empty()) throw UsageError("--data is missing: name the UTF-8 text file to learn from");
  values["data"] = options.data = std::filesystem::absolute(options.data).string();
  check_storable(values);
  check(options);
  set_num_threads(options.threads);
  return Run(options, std::move(values), stored).execute();
}

}  // namespace tapestry::command
