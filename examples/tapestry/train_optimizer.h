// What `tapestry train --optimizer` and `--ema` choose: the optimizers by name with their defaults, and the model
// together with the average of its weights.
#pragma once

#include <memory>
#include <optional>

#include "optim/ema.h"
#include "optim/optimizer.h"
#include "train_options.h"

namespace tapestry::command {

void add_optimizer_options(Options& options, TrainOptions& o);
// What was not given takes the value that suits the chosen optimizer.
void set_optimizer_defaults(const Options& given, TrainOptions& o);
std::unique_ptr<Optimizer> make_optimizer(const TrainOptions& o, std::vector<NamedParameter> parameters);

// A model and, with a decay above 0, the average of its weights: one module, so that a checkpoint holds both.
class AveragedModel : public Module {
 public:
  AveragedModel(Module& model, double decay);
  void visit(Visitor& v) override;

  void update() {
    if (ema_) ema_->update();
  }
  // While it lives the model has its average, if it keeps one.
  std::optional<Ema::Swap> averaged() {
    return ema_ ? std::optional<Ema::Swap>(std::in_place, *ema_) : std::optional<Ema::Swap>();
  }
  void keep_average() {
    if (ema_) ema_->copy_to_model();
  }

 private:
  Module& model_;
  std::optional<Ema> ema_;
};

// The decay that a checkpoint's stored options name.
double ema_decay(const std::map<std::string, std::string>& stored);

}  // namespace tapestry::command
