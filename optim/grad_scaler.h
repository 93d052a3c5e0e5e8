// GradScaler: multiplies the loss, so that small gradients survive in f16, and finds a scale that does not overflow.
// The protocol, in the only order that can be written:
//
//   GradScaler scaler;
//   { Tape tape; scaler.backward(model.loss(x, y)); }                            // scale, backward
//   optimizer.step({.lr = rate, .scaler = &scaler, .clip_norm = 1});             // unscale, check, clip, update or
//                                                                                // skip, new scale
#pragma once

#include <cstdint>

#include "autograd/var.h"

namespace tapestry {

class Optimizer;
struct RunState;

struct GradScalerOptions {
  double init_scale = 65536;
  bool dynamic = true;                  // false: always init_scale; an overflow still skips the step
  double growth_factor = 2;             // > 1: after growth_interval windows in a row without overflow
  std::int64_t growth_interval = 2000;  // an overflow begins it anew
  double backoff_factor = 0.5;          // in (0, 1): after an overflow
  // The scale stays in between. What overflows at scale 1 is no matter of the scale, and 2^24 lifts the smallest
  // number of f16 to 1; the limits of what may be set are 2^-126 and the largest f32.
  double min_scale = 1, max_scale = 16777216;
  bool enabled = true;  // false: everything works as with a scale of 1 that never changes
};

// A window is what lies between two steps: one or more backward() calls, whose gradients add up. Each gradient carries
// the scale it was made with, so these throw: scaled and plain backward, or two scales, in one window; a step without
// the scaler; backward after unscale(); unscale() twice; a step without backward.
// What cannot be told apart: a forgotten step and an accumulation. It is only found where the scale has changed.
//
// Several optimizers may share a scaler: call step of each once after the backward calls. Each skips for its own
// gradients, and the window counts as one overflow if any had one, as with PyTorch's single update().
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  // Adds the gradients of scale() * weight * loss on Tape::current(). `loss` is f32 or f64. In a window of
  // micro-batches whose losses are means, weight is the valid tokens of this one / those of the window: the sum is then
  // scale() times the gradient of the mean over the whole window, and stays as small.
  void backward(const Var& loss, double weight = 1);

  // For looking at gradients or changing them by hand before step(): divides those of `optimizer` by the scale, once.
  // step() then skips for an overflow found here or there. Needs backward before.
  void unscale(Optimizer& optimizer) const;

  double scale() const { return state_.scale; }  // of the next window; in an open one, of its gradients
  bool enabled() const { return options_.enabled; }

  struct State {
    double scale = 1;             // always an f32 number
    std::int64_t good_steps = 0;  // in a row since the scale changed or an overflow; below growth_interval
    bool operator==(const State&) const = default;
  };
  State state() const { return state_; }
  void set_state(const State& state);  // throws for a scale that is not finite and positive, and a negative count

  // As "grad_scaler.scale" and "grad_scaler.good_steps" in a training state. load throws if they are not there.
  void save(RunState& run) const;
  void load(const RunState& run);
  static bool is_in(const RunState& run);

 private:
  friend class Optimizer;
  // The scale that gradients of the window carry, also when a first optimizer's step has changed scale().
  double window_scale() const { return stepped_ ? before_.scale : state_.scale; }
  void update(bool overflow);  // at the end of each optimizer's step
  State next(const State& state, bool overflow) const;

  GradScalerOptions options_;
  State state_;
  State before_;           // at the beginning of the window that was stepped
  bool stepped_ = false;   // since the last backward
  bool overflow_ = false;  // of any optimizer in the window
};

}  // namespace tapestry
