// The scale and its rules: those of PyTorch's GradScaler, with a floor and a cap.
#include "optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/tape.h"
#include "optim/optimizer.h"
#include "optim/training_state.h"

namespace tapestry {

namespace {

constexpr char kScale[] = "grad_scaler.scale", kGoodSteps[] = "grad_scaler.good_steps";

// A scale is an f32 number, since it multiplies an f32 loss.
double as_f32(double value) { return static_cast<double>(static_cast<float>(value)); }

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  const GradScalerOptions& o = options_;
  using Float = std::numeric_limits<float>;
  TAP_CHECK(std::isfinite(o.init_scale) && o.init_scale > 0, "GradScaler: init_scale must be finite and above 0, not ",
            o.init_scale);
  TAP_CHECK(o.min_scale >= Float::min() && o.min_scale <= o.max_scale && o.max_scale <= Float::max(),
            "GradScaler: 2^-126 <= min_scale <= max_scale <= ", Float::max(), " must hold, but they are ", o.min_scale,
            " and ", o.max_scale);
  TAP_CHECK(o.init_scale >= o.min_scale && o.init_scale <= o.max_scale, "GradScaler: init_scale must lie between ",
            "min_scale and max_scale, ", o.min_scale, " and ", o.max_scale, ", but is ", o.init_scale);
  TAP_CHECK(std::isfinite(o.growth_factor) && o.growth_factor > 1,
            "GradScaler: growth_factor must be finite and above 1, not ", o.growth_factor);
  TAP_CHECK(o.backoff_factor > 0 && o.backoff_factor < 1, "GradScaler: backoff_factor must be in (0, 1), not ",
            o.backoff_factor);
  TAP_CHECK(o.growth_interval >= 1, "GradScaler: growth_interval must be at least 1, not ", o.growth_interval);
  state_.scale = o.enabled ? as_f32(o.init_scale) : 1;
}

void GradScaler::backward(const Var& loss, double weight) {
  Tape* tape = Tape::current();
  TAP_CHECK(tape, "GradScaler.backward: no tape records here; make a Tape before the forward pass");
  const DType dtype = loss.dtype();
  TAP_CHECK(dtype == DType::f32 || dtype == DType::f64, "GradScaler.backward: the loss must be f32 or f64, not ", dtype,
            ", where a scale of ", scale(), " may be infinite; compute the loss in f32");
  TAP_CHECK(std::isfinite(weight), "GradScaler.backward: weight must be finite, not ", weight);
  {
    const detail::LossScaleScope scope(state_.scale);
    tape->backward(loss, state_.scale * weight);
  }
  stepped_ = false;
}

void GradScaler::unscale(Optimizer& optimizer) const { optimizer.unscale(*this); }

void GradScaler::update(bool overflow) {
  if (!stepped_) {
    before_ = state_;
    overflow_ = false;
  }
  stepped_ = true;
  overflow_ |= overflow;
  state_ = next(before_, overflow_);
}

GradScaler::State GradScaler::next(const State& state, bool overflow) const {
  const GradScalerOptions& o = options_;
  if (!o.enabled || !o.dynamic) return state;
  if (overflow) return {std::max(as_f32(state.scale * o.backoff_factor), o.min_scale)};
  if (state.good_steps + 1 < o.growth_interval) return {state.scale, state.good_steps + 1};
  const double grown = as_f32(state.scale * o.growth_factor);
  return {std::isfinite(grown) ? std::min(grown, o.max_scale) : state.scale};
}

void GradScaler::set_state(const State& state) {
  TAP_CHECK(state.scale > 0 && std::isfinite(state.scale) && as_f32(state.scale) == state.scale,
            "GradScaler: a state's scale must be an f32 number above 0, not ", state.scale);
  TAP_CHECK(state.good_steps >= 0, "GradScaler: a state's good_steps must be at least 0, not ", state.good_steps);
  TAP_CHECK(options_.enabled, "GradScaler: it is not enabled, so it takes no state");
  state_ = state;
  stepped_ = false;
}

void GradScaler::save(RunState& run) const {
  run.numbers[kScale] = state_.scale;
  run.counters[kGoodSteps] = state_.good_steps;
}

bool GradScaler::is_in(const RunState& run) {
  return run.numbers.contains(kScale) && run.counters.contains(kGoodSteps);
}

void GradScaler::load(const RunState& run) {
  TAP_CHECK(is_in(run), "GradScaler.load: the training state holds no scaler, so it was saved by a run without one; ",
            "continue without, or leave out load() to start from the scale ", scale());
  set_state({run.numbers.at(kScale), run.counters.at(kGoodSteps)});
}

}  // namespace tapestry
