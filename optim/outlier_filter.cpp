// Running mean and variance of two series, and the judgement by them.
#include "optim/outlier_filter.h"

#include <algorithm>
#include <cmath>

#include "optim/training_state.h"

namespace tapestry {

namespace {

constexpr double kSmallestDeviation = 1e-3;  // relative to the mean: a constant has no outliers in its last digits
constexpr char kSteps[] = "outliers.steps";

// Calls f(name, number) for each number of a state.
template <class State, class F>
void for_numbers(State& state, F&& f) {
  f("outliers.loss_mean", state.loss.mean);
  f("outliers.loss_variance", state.loss.variance);
  f("outliers.grad_norm_mean", state.grad_norm.mean);
  f("outliers.grad_norm_variance", state.grad_norm.variance);
}

}  // namespace

OutlierFilter::OutlierFilter(const OutlierOptions& options) : options_(options) {
  TAP_CHECK(std::isfinite(options.threshold) && options.threshold > 0,
            "OutlierFilter: threshold must be finite and above 0, not ", options.threshold);
  TAP_CHECK(options.length >= 2, "OutlierFilter: length must be at least 2, not ", options.length);
  TAP_CHECK(options.warmup >= 2, "OutlierFilter: warmup must be at least 2, not ", options.warmup);
}

OutlierFilter::Kind OutlierFilter::judge(double loss, double grad_norm) {
  const bool high_loss = take(state_.loss, loss), high_norm = take(state_.grad_norm, grad_norm);
  ++state_.steps;
  return high_loss ? Kind::loss : high_norm ? Kind::grad_norm : Kind::none;
}

bool OutlierFilter::take(Moments& moments, double value) const {
  const double deviation = std::max(std::sqrt(moments.variance), kSmallestDeviation * std::abs(moments.mean));
  const double bound = moments.mean + options_.threshold * deviation;
  const bool outlier = state_.steps >= options_.warmup && value > bound;
  const double share = 1 / static_cast<double>(std::min(state_.steps + 1, options_.length));
  const double delta = (outlier ? bound : value) - moments.mean;
  moments.mean += share * delta;
  moments.variance = (1 - share) * (moments.variance + share * delta * delta);
  return outlier;
}

void OutlierFilter::set_state(const State& state) {
  TAP_CHECK(state.steps >= 0, "OutlierFilter: a state's steps must be at least 0, not ", state.steps);
  for_numbers(state, [](const char* name, double value) {
    TAP_CHECK(std::isfinite(value), "OutlierFilter: ", name, " must be finite, not ", value);
  });
  TAP_CHECK(state.loss.variance >= 0 && state.grad_norm.variance >= 0, "OutlierFilter: a variance is negative");
  state_ = state;
}

void OutlierFilter::save(RunState& run) const {
  run.counters[kSteps] = state_.steps;
  for_numbers(state_, [&](const char* name, double value) { run.numbers[name] = value; });
}

void OutlierFilter::load(const RunState& run) {
  State state;
  auto check = [](bool found) {
    TAP_CHECK(found, "OutlierFilter.load: the training state holds no statistics, so it was saved by a run without a ",
              "filter; continue without, or leave out load() to start it anew");
  };
  check(run.counters.contains(kSteps));
  state.steps = run.counters.at(kSteps);
  for_numbers(state, [&](const char* name, double& value) {
    check(run.numbers.contains(name));
    value = run.numbers.at(name);
  });
  set_state(state);
}

}  // namespace tapestry
