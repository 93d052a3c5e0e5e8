// Inverted dropout while training, the identity (the same bits) in eval mode. p outside [0, 1] throws.
#pragma once

#include "autograd/module.h"
#include "autograd/ops.h"

namespace tapestry {

class Dropout : public Module {
 public:
  explicit Dropout(double p);
  Var operator()(const Var& x) const;  // draws its key from the thread's generator, see core/random.h
  void visit(Visitor&) override {}
  std::string_view kind() const override { return "Dropout"; }
  double p() const { return p_; }
  bool active() const { return training() && p_ > 0; }

 private:
  double p_;
};

}  // namespace tapestry
