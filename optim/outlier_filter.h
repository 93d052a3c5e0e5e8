// OutlierFilter: finds steps whose loss or gradient norm is far above what is usual, so that one broken batch does not
// undo a run: optimizer.step({.lr = rate, .loss = loss, .outliers = &filter}) skips them.
#pragma once

#include <cstdint>

namespace tapestry {

struct RunState;

struct OutlierOptions {
  double threshold = 6;       // standard deviations above the mean
  std::int64_t length = 128;  // of the exponential means: the latest step weighs 1 / length
  std::int64_t warmup = 64;   // first steps, which are never outliers
};

// Mean m and variance v over the steps, both plain at first: m += a (x - m), v = (1 - a) (v + a (x - m)^2) with
// a = 1 / min(steps, length). A value above m + threshold max(sqrt(v), 0.001 |m|) is an outlier, and counts in them as
// that bound: a lasting change of level is followed. Low values are never outliers.
class OutlierFilter {
 public:
  enum class Kind : std::uint8_t { none, loss, grad_norm };

  explicit OutlierFilter(const OutlierOptions& options = {});

  // Judges a step by the ones before it and takes it in. Both values must be finite.
  Kind judge(double loss, double grad_norm);

  struct Moments {
    double mean = 0, variance = 0;
    bool operator==(const Moments&) const = default;
  };
  struct State {
    std::int64_t steps = 0;
    Moments loss = {}, grad_norm = {};
    bool operator==(const State&) const = default;
  };
  const State& state() const { return state_; }
  void set_state(const State& state);

  // As "outliers.steps", "outliers.loss_mean", ... in a training state. load throws if they are not there.
  void save(RunState& run) const;
  void load(const RunState& run);

 private:
  bool take(Moments& moments, double value) const;

  OutlierOptions options_;
  State state_;
};

}  // namespace tapestry
