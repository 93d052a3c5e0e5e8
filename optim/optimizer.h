// Optimizers over flat buffers. The values, gradients and moments of all parameters lie in one buffer each (64-byte
// aligned segments), so norm, finite check and update are one kernel call each.
//
//   AdamW optimizer(parameters(model), {.weight_decay = 0.1});
//   { Tape tape; tape.backward(loss); }
//   optimizer.step({.lr = schedule(t), .clip_norm = 1.0});
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/module.h"

namespace tapestry {

// Parameters that share settings. Unset settings are the optimizer's own.
struct ParameterGroup {
  std::vector<NamedParameter> parameters;
  double lr_scale = 1;
  std::optional<double> weight_decay;
};

// Weight decay for matrices only: rank >= 2 keeps the optimizer's setting, rank < 2 gets 0.
std::vector<ParameterGroup> decay_matrices_only(std::vector<NamedParameter> parameters);

struct StepOptions {
  double lr = 0;         // required, >= 0
  double clip_norm = 0;  // global L2 norm above which gradients are scaled down; 0: no clipping
};
struct StepReport {
  double grad_norm = 0;  // before clipping, in double; of the parameters that have a gradient
  bool skipped = false;  // the norm was not finite: nothing changed but the gradients are unset
};

// Moves the parameters into its buffers for as long as it lives. Overlapping optimizers throw, and so do to() and tie()
// of a packed Parameter. A Parameter without a gradient is left out of norm and update.
class Optimizer : private ParameterPack {
 public:
  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Norm, finite check, clip, update, and unsets the gradients. Throws if no Parameter has a gradient, and after ten
  // non-finite steps in a row. Allocates nothing.
  StepReport step(const StepOptions& options);
  void zero_grad();
  std::int64_t steps() const { return steps_; }  // updates done, skipped ones not counted

  // The state by name for saving: moments "<parameter>/<moment>" and counters. load copies in place.
  struct NamedState {
    std::string name;
    Tensor tensor;
  };
  std::vector<NamedState> state();
  void set_steps(std::int64_t steps) { steps_ = steps; }

  virtual std::string_view name() const = 0;

 protected:
  struct Segment {
    NamedParameter parameter;
    std::int64_t offset = 0, numel = 0;  // in elements of the flat buffers
    std::int64_t updates = 0;            // that its moments have received
    std::size_t group = 0;
  };
  // One update of elements [begin, end) of the flat buffers, all of one group and with the same number of updates.
  struct Range {
    std::int64_t begin, end, updates;  // updates counts this one
    double lr, weight_decay, grad_scale;
  };

  Optimizer(std::vector<ParameterGroup> groups, std::vector<std::string> moment_names, double weight_decay);
  virtual void update(const Range& range) = 0;

  Tensor values_, grads_;
  std::vector<Tensor> moments_;

 private:
  void unset_gradients() noexcept override;
  std::vector<ParameterGroup> groups_;
  std::vector<Segment> segments_;
  std::vector<std::string> moment_names_;
  double weight_decay_;
  std::int64_t steps_ = 0;
  int skipped_in_a_row_ = 0;
};

struct SgdOptions {
  double momentum = 0;  // velocity v = momentum v + g; the rate stays outside of it, as in PyTorch
  bool nesterov = false;
  double weight_decay = 0;  // added to the gradient (L2)
};
// p -= lr v, or with nesterov p -= lr (g + momentum v).
class Sgd : public Optimizer {
 public:
  Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options = {});
  Sgd(std::vector<NamedParameter> parameters, const SgdOptions& options = {});
  std::string_view name() const override { return "Sgd"; }

 private:
  void update(const Range& range) override;
  SgdOptions options_;
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // decoupled: p -= lr * weight_decay * p
};
// Loshchilov & Hutter 2019: m, v moments, bias-corrected; p -= lr (mhat / (sqrt(vhat) + eps) + weight_decay p).
class AdamW : public Optimizer {
 public:
  AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options = {});
  AdamW(std::vector<NamedParameter> parameters, const AdamWOptions& options = {});  // decay_matrices_only
  std::string_view name() const override { return "AdamW"; }

 private:
  void update(const Range& range) override;
  AdamWOptions options_;
};

}  // namespace tapestry
