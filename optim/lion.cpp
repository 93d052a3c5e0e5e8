// Lion: options and the call of its kernel.
#include "optim/lion.h"

#include "optim/option_checks.h"

namespace tapestry {

namespace {

const LionOptions& checked(const LionOptions& o) {
  detail::check_unit("Lion", "beta1", o.beta1);
  detail::check_unit("Lion", "beta2", o.beta2);
  detail::check_not_negative("Lion", "weight_decay", o.weight_decay);
  return o;
}

}  // namespace

Lion::Lion(std::vector<ParameterGroup> groups, const LionOptions& options)
    : Optimizer(std::move(groups), {{"m"}}, checked(options).weight_decay), options_(options) {}
Lion::Lion(std::vector<NamedParameter> parameters, const LionOptions& options)
    : Lion(decay_matrices_only(std::move(parameters)), options) {}

void Lion::update(const Range& range) {
  const WriterScope writer("Lion.step");
  const LionStep step{range.lr, options_.beta1, options_.beta2, range.weight_decay, range.grad_scale};
  TAP_DISPATCH(lion_update, values_, grads_, moments_[0], range, step);
}

}  // namespace tapestry
