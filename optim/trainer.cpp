// The training loop.
#include "optim/trainer.h"

#include <bit>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "core/random.h"

namespace tapestry {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Trainer::Trainer(Module& model, Optimizer& optimizer, Schedule schedule, TrainerOptions options, Functions functions)
    : model_(model),
      optimizer_(optimizer),
      schedule_(std::move(schedule)),
      options_(options),
      functions_(std::move(functions)) {
  TAP_CHECK(schedule_, "Trainer: needs a schedule, such as constant(3e-4)");
  TAP_CHECK(functions_.micro_loss, "Trainer: needs micro_loss, the loss of one micro-batch");
  TAP_CHECK(options_.max_steps >= 0, "Trainer: max_steps must be at least 0, not ", options_.max_steps);
  TAP_CHECK(options_.accumulate >= 1, "Trainer: accumulate must be at least 1, not ", options_.accumulate);
  TAP_CHECK(options_.eval_every >= 0, "Trainer: eval_every must be at least 0, not ", options_.eval_every);
  TAP_CHECK(std::isfinite(options_.clip_norm) && options_.clip_norm >= 0,
            "Trainer: clip_norm must be finite and at least 0, not ", options_.clip_norm);
  TAP_CHECK(std::isfinite(options_.clip_value) && options_.clip_value >= 0,
            "Trainer: clip_value must be finite and at least 0, not ", options_.clip_value);
  TAP_CHECK(options_.time_budget_seconds >= 0, "Trainer: time_budget_seconds must be at least 0, not ",
            options_.time_budget_seconds);
  if (options_.scaler && !options_.scaler->enabled()) options_.scaler = nullptr;
}

Trainer::Stop Trainer::run() {
  const Clock::time_point start = Clock::now();
  Stop stop = Stop::finished;
  bool evaluated = false;
  while (step_ < options_.max_steps) {
    if (interrupted_.exchange(false)) return Stop::interrupted;
    if (options_.time_budget_seconds > 0 && seconds_since(start) >= options_.time_budget_seconds) {
      stop = Stop::time_budget;
      break;
    }
    const StepInfo info = step();
    if (functions_.on_step) functions_.on_step(info);
    evaluated = options_.eval_every > 0 && step_ % options_.eval_every == 0;
    if (evaluated) evaluate();
  }
  if (!evaluated) evaluate();
  interrupted_ = false;
  return stop;
}

StepInfo Trainer::step() {
  const Clock::time_point start = Clock::now();
  while (window_.micro_steps < options_.accumulate) micro_step();
  const double lr = schedule_(optimizer_.steps());
  const Window window = std::exchange(window_, {});
  StepReport report;
  try {
    report = optimizer_.step({.lr = lr,
                              .scaler = options_.scaler,
                              .clip_norm = options_.clip_norm,
                              .clip_value = options_.clip_value,
                              .loss = window.loss,
                              .outliers = options_.outliers});
  } catch (...) {
    optimizer_.zero_grad();  // the window is over: its gradients must not run into the next one
    throw;
  }
  ++step_;
  return {.step = step_,
          .loss = window.loss,
          .lr = lr,
          .grad_norm = report.grad_norm,
          .scale = report.scale,
          .tokens = window.tokens,
          .seconds = seconds_since(start),
          .skipped = report.skipped,
          .reason = report.reason,
          .skipped_steps = optimizer_.skipped_steps()};
}

void Trainer::micro_step() {
  TAP_CHECK(window_.micro_steps < options_.accumulate, "Trainer: the window already has its ", options_.accumulate,
            " micro-batches; call step() for the update");
  const double weight = next_weight();
  const RandomScope random(derive_seed(options_.seed, "dropout"), static_cast<std::uint64_t>(micro_step_));
  Tape tape;
  const LossResult result = functions_.micro_loss(micro_step_);
  if (functions_.valid_tokens) {
    const std::int64_t announced = functions_.valid_tokens(micro_step_);
    TAP_CHECK(result.valid_tokens == announced, "Trainer: valid_tokens(", micro_step_, ") is ", announced,
              ", but micro_loss counted ", result.valid_tokens);
  } else {
    TAP_CHECK(result.valid_tokens * window_.micro_steps == window_.tokens, "Trainer: micro-batch ", micro_step_,
              " has ", result.valid_tokens, " valid tokens, unlike the others of its window; give ",
              "Functions::valid_tokens, so that each is weighted by its own");
  }
  if (!checked_) check_all_visited(model_, tape);
  checked_ = true;
  try {
    options_.scaler ? options_.scaler->backward(result.loss, weight) : tape.backward(result.loss, weight);
  } catch (...) {
    optimizer_.zero_grad();
    micro_step_ -= window_.micro_steps;
    window_ = {};
    throw;
  }
  window_.loss += weight * result.loss.item();
  window_.tokens += result.valid_tokens;
  ++window_.micro_steps;
  ++micro_step_;
}

void Trainer::replay_step() {
  TAP_CHECK(window_.micro_steps == 0 && micro_step_ >= options_.accumulate,
            "Trainer: replay_step needs a step that is done, and no open window");
  micro_step_ -= options_.accumulate;
  while (window_.micro_steps < options_.accumulate) micro_step();
  window_ = {};
  optimizer_.zero_grad();
}

double Trainer::next_weight() {
  if (!functions_.valid_tokens) return 1 / static_cast<double>(options_.accumulate);
  auto count = [&](std::int64_t micro_step) {
    const std::int64_t valid = functions_.valid_tokens(micro_step);
    TAP_CHECK(valid >= 0, "Trainer: valid_tokens(", micro_step, ") must be at least 0, not ", valid);
    return valid;
  };
  if (window_.all_tokens < 0) {
    const std::int64_t first = micro_step_ - window_.micro_steps;
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < options_.accumulate; ++i) sum += count(first + i);
    window_.all_tokens = sum;
  }
  const std::int64_t here = count(micro_step_);
  return here == 0 ? 0 : static_cast<double>(here) / static_cast<double>(window_.all_tokens);
}

void Trainer::evaluate() {
  if (!functions_.evaluate) return;
  double loss = 0;
  {
    const EvalScope eval_scope(model_);
    const NoGrad no_grad;
    const RandomScope random(derive_seed(options_.seed, "evaluate"), static_cast<std::uint64_t>(step_));
    loss = functions_.evaluate();
  }
  if (functions_.on_eval) functions_.on_eval(step_, loss);
}

void Trainer::save(const std::string& path, RunState extra) const {
  extra.counters["step"] = step_;
  extra.counters["micro_step"] = micro_step_;
  extra.counters["seed"] = std::bit_cast<std::int64_t>(options_.seed);
  extra.counters["accumulate"] = options_.accumulate;
  extra.counters["window_micro_steps"] = window_.micro_steps;
  extra.counters["window_tokens"] = window_.tokens;
  extra.numbers["window_loss"] = window_.loss;
  if (options_.scaler) options_.scaler->save(extra);
  if (options_.outliers) options_.outliers->save(extra);
  save_training_state(path, model_, &optimizer_, extra);
}

RunState Trainer::load(const std::string& path) {
  // The counters are checked before the model is changed.
  const RunState saved = read_run_state(path);
  auto counter = [&](const char* name) {
    const auto found = saved.counters.find(name);
    TAP_CHECK(found != saved.counters.end(), "load: ", path, " was not saved by a Trainer; it has no counter ", name);
    return found->second;
  };
  const std::int64_t step = counter("step"), micro_step = counter("micro_step"), accumulate = counter("accumulate");
  const Window window{.micro_steps = counter("window_micro_steps"),
                      .tokens = counter("window_tokens"),
                      .loss = saved.numbers.contains("window_loss") ? saved.numbers.at("window_loss") : 0};
  const std::uint64_t seed = std::bit_cast<std::uint64_t>(counter("seed"));
  TAP_CHECK(step >= 0 && window.micro_steps >= 0 && micro_step >= window.micro_steps && window.tokens >= 0,
            "load: ", path, " has impossible counters: step ", step, ", micro_step ", micro_step,
            ", window_micro_steps ", window.micro_steps);
  TAP_CHECK(window.micro_steps == 0 || (accumulate == options_.accumulate && window.micro_steps <= accumulate),
            "load: ", path, " was saved after ", window.micro_steps, " of ", accumulate,
            " micro-batches of a step, so accumulate must be ", accumulate, ", not ", options_.accumulate);
  std::optional<GradScaler> scaler;
  std::optional<OutlierFilter> outliers;
  try {
    if (options_.scaler) (scaler = *options_.scaler)->load(saved);
    if (options_.outliers) (outliers = *options_.outliers)->load(saved);
  } catch (const Error& e) {
    fail("load: ", path, ": ", e.what());
  }
  TAP_CHECK(scaler || !GradScaler::is_in(saved), "load: ", path,
            " holds the state of a GradScaler and this Trainer has ", "none; give TrainerOptions::scaler");
  RunState run = load_training_state(path, model_, &optimizer_);
  if (scaler) *options_.scaler = *scaler;
  if (outliers) *options_.outliers = *outliers;
  options_.seed = seed;
  step_ = step;
  micro_step_ = micro_step;
  window_ = window;
  return run;
}

}  // namespace tapestry
