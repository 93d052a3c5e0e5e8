// Ema: an exponential moving average of a model's weights, which often generalises better than the last ones.
//
//   Ema ema(parameters(model), {.decay = 0.999});
//   optimizer.step(...);  ema.update();
//   { const Ema::Swap averaged(ema); evaluate(); }  // the model has the average here, and its own weights afterwards
#pragma once

#include "autograd/module.h"

namespace tapestry {

struct EmaOptions {
  double decay = 0.999;
  bool warm_up = true;  // update t = 0, 1, ... uses min(decay, (1 + t) / (10 + t)): soon free of the first weights
};

// A Module, so that the averages and the count of updates are buffers: visited as a member beside the model, they are
// saved in a training state. Averages begin as copies of the weights and have their dtype.
class Ema : public Module {
 public:
  explicit Ema(std::vector<NamedParameter> parameters, const EmaOptions& options = {});

  // average = d average + (1 - d) weight. Call once after every step. Throws while swapped.
  void update();
  std::int64_t updates() const;
  // Of one parameter, by its name; throws for one that it does not know.
  const Tensor& average(std::string_view name) const;
  void copy_to_model();  // the weights become the averages, for good

  // Exchanges weights and averages for as long as it lives, element by element in place, so packed parameters stay
  // where they are. No training meanwhile.
  class Swap {
   public:
    explicit Swap(Ema& ema);
    ~Swap();
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;

   private:
    Ema& ema_;
  };

  void visit(Visitor& v) override;
  std::string_view kind() const override { return "Ema"; }

 private:
  struct Entry {
    std::string name;
    std::shared_ptr<detail::ParameterState> state;  // outlives the Parameter
    Tensor average;
  };
  void swap();
  EmaOptions options_;
  std::vector<Entry> entries_;
  Tensor updates_;
  bool swapped_ = false;
};

}  // namespace tapestry
