// Optimizers over flat buffers. The values, gradients and moments of all parameters lie in one buffer each (64-byte
// aligned segments), so norm, finite check and update are one kernel call each.
//
//   AdamW optimizer(parameters(model), {.weight_decay = 0.1});  // each optimizer has its header; optimizers.h has all
//   { Tape tape; tape.backward(loss); }
//   optimizer.step({.lr = schedule(t), .clip_norm = 1.0});
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/module.h"
#include "core/kernels/optimizer.h"

namespace tapestry {

// Parameters that share settings. An unset weight_decay is the optimizer's own.
struct ParameterGroup {
  std::vector<NamedParameter> parameters = {};
  double lr_scale = 1;
  std::optional<double> weight_decay = {};
};

// Weight decay for matrices only: rank >= 2 keeps the optimizer's setting, rank < 2 gets 0.
std::vector<ParameterGroup> decay_matrices_only(std::vector<NamedParameter> parameters);

class GradScaler;
class OutlierFilter;

struct StepOptions {
  double lr = -1;                     // required, >= 0
  GradScaler* scaler = nullptr;       // whose backward() made the gradients
  double clip_norm = 0;               // global L2 norm above which gradients are scaled down; 0: no clipping
  double clip_value = 0;              // bound of each element, applied before clip_norm; 0: none
  double loss = 0;                    // if given: a loss that is not finite skips the step, as a norm does
  OutlierFilter* outliers = nullptr;  // skips steps whose loss (if given) or norm is far above the usual
};

enum class SkipReason : std::uint8_t { none, loss_not_finite, overflow, loss_outlier, grad_norm_outlier };
std::string_view reason_text(SkipReason reason);  // "the gradient is not finite"

struct StepReport {
  double grad_norm = 0;  // before clipping, in double; of the parameters that have a gradient, without the loss scale
  bool skipped = false;  // nothing changed but the gradients are unset (and the scaler's scale)
  SkipReason reason = SkipReason::none;
  bool overflow = false;  // the gradient is not finite, whatever the reason
  double scale = 1;       // that the gradients had
};

// Moves the parameters into its buffers for as long as it lives: all f32, or all f64. Overlapping optimizers throw, and
// so do to() and tie() of a packed Parameter. A Parameter without a gradient is left out of norm and update.
class Optimizer : private ParameterPack {
 public:
  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Unscale, finite check, clip, update or skip, new scale, in this order, and unsets the gradients. They are read only
  // (both the loss scale and clip_norm are a factor in the update), but clip_value writes them. A skipped step leaves
  // values, moments and all counts of updates as they are. Throws if no Parameter has a gradient, if the gradients do
  // not carry the scale of `scaler`, and in the tenth skipped step in a row. Allocates nothing after its first call.
  StepReport step(const StepOptions& options);
  void zero_grad() { unset_gradients(); }
  // Updates done, skipped ones not counted: the position in a schedule.
  std::int64_t steps() const { return steps_; }
  std::int64_t skipped_steps() const { return skipped_; }

  // What a training state keeps: every moment of every parameter as "<moment>/<parameter>", a view that can be written,
  // and the counters.
  struct NamedState {
    std::string name;
    Tensor tensor;
  };
  std::vector<NamedState> state() const;
  struct Counters {
    std::int64_t steps = 0, skipped = 0, skipped_in_a_row = 0;
    std::map<std::string, std::int64_t> updates;  // of each parameter by name
  };
  Counters counters() const;
  void set_counters(const Counters& counters);  // throws if `updates` lacks a parameter

  virtual std::string_view name() const = 0;

 protected:
  // One update of elements [begin, end) of the flat buffers, all of one group and with the same number of updates.
  struct Range : FlatRange {
    std::int64_t updates;  // that the moments have received, this one included
    double lr, weight_decay, grad_scale;
    std::size_t first, last;  // the same elements as the parameters [first, last)
  };

  // A state of every parameter, zero at first. Where it has not the parameter's shape, `shape` tells which, or that
  // this parameter has none.
  struct Moment {
    std::string name;
    std::function<std::optional<Shape>(const Shape& parameter, std::size_t group)> shape = {};
  };

  // Packs the parameters and makes one buffer per moment.
  Optimizer(std::vector<ParameterGroup> groups, std::vector<Moment> moments, double weight_decay);
  virtual void update(const Range& range) = 0;

  // Whole buffers, for what works element by element. moments_[m] lies as the values do unless it has shapes of its
  // own.
  Tensor values_, grads_;
  std::vector<Tensor> moments_;

  // One parameter, for what needs its shape. A moment that it does not have is an empty handle.
  Tensor& value(std::size_t parameter) { return segments_[parameter].state->value; }
  const Tensor& grad(std::size_t parameter) const { return segments_[parameter].state->grad.tensor; }
  Tensor& moment(std::size_t m, std::size_t parameter) { return segments_[parameter].moments[m]; }
  std::size_t group(std::size_t parameter) const { return segments_[parameter].group; }

 private:
  friend class GradScaler;
  struct Segment {
    std::string name;
    std::shared_ptr<detail::ParameterState> state;  // outlives the Parameter, so the model may go first
    std::int64_t offset, numel;                     // in elements of the flat buffers
    std::int64_t updates = 0;                       // that its moments have received
    double lr_scale, weight_decay;
    std::size_t group;
    std::vector<Tensor> moments = {};  // views of the buffers
  };

  std::int64_t plan(std::vector<ParameterGroup>& groups, double weight_decay);
  void pack(std::int64_t size);
  void add_moment(const Moment& moment);
  void attach();
  void collect_ranges(double lr);
  double gradient_norm() const;
  double loss_scale(const GradScaler* scaler) const;
  void unscale(const GradScaler& scaler);
  void forget_stale_unscale();
  StepReport inspect(const StepOptions& options);
  void apply(const StepOptions& options, const StepReport& report);
  void count_skipped(const StepReport& report, double loss);
  void unset_gradients() noexcept override;
  Tensor view(const Tensor& flat, const Segment& segment) const;

  std::vector<Segment> segments_;
  std::vector<Range> ranges_;              // of the step at hand
  std::vector<std::string> moment_names_;  // as moments_
  std::int64_t steps_ = 0, skipped_ = 0, skipped_in_a_row_ = 0;
  struct {
    const GradScaler* by = nullptr;  // whose unscale() the gradients of the window went through
    bool overflow = false;
  } unscaled_;
};

}  // namespace tapestry
