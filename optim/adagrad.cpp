// Adagrad: options and the call of its kernel.
#include "optim/adagrad.h"

#include "optim/option_checks.h"

namespace tapestry {

namespace {

const AdagradOptions& checked(const AdagradOptions& o) {
  detail::check_eps("Adagrad", "eps", o.eps);
  detail::check_not_negative("Adagrad", "initial_sum", o.initial_sum);
  detail::check_not_negative("Adagrad", "weight_decay", o.weight_decay);
  return o;
}

}  // namespace

Adagrad::Adagrad(std::vector<ParameterGroup> groups, const AdagradOptions& options)
    : Optimizer(std::move(groups), {{"sum"}}, checked(options).weight_decay), options_(options) {}
Adagrad::Adagrad(std::vector<NamedParameter> parameters, const AdagradOptions& options)
    : Adagrad(decay_matrices_only(std::move(parameters)), options) {}

void Adagrad::update(const Range& range) {
  const WriterScope writer("Adagrad.step");
  const AdagradStep step{range.lr,           options_.eps,     options_.initial_sum,
                         range.weight_decay, range.grad_scale, range.updates};
  TAP_DISPATCH(adagrad_update, values_, grads_, moments_[0], range, step);
}

}  // namespace tapestry
