// Lamb: options and the call of its kernel for each parameter.
#include "optim/lamb.h"

#include "core/kernels/lamb.h"
#include "optim/option_checks.h"

namespace tapestry {

namespace {

const LambOptions& checked(const LambOptions& o) {
  detail::check_unit("Lamb", "beta1", o.beta1);
  detail::check_unit("Lamb", "beta2", o.beta2);
  detail::check_eps("Lamb", "eps", o.eps);
  detail::check_not_negative("Lamb", "weight_decay", o.weight_decay);
  return o;
}

}  // namespace

Lamb::Lamb(std::vector<ParameterGroup> groups, const LambOptions& options)
    : Optimizer(std::move(groups), {{"m"}, {"v"}}, checked(options).weight_decay), options_(options) {}
Lamb::Lamb(std::vector<NamedParameter> parameters, const LambOptions& options)
    : Lamb(decay_matrices_only(std::move(parameters)), options) {}

void Lamb::update(const Range& range) {
  const WriterScope writer("Lamb.step");
  const LambStep step{range.lr,           options_.beta1,   options_.beta2, options_.eps,
                      range.weight_decay, range.grad_scale, range.updates};
  for (std::size_t i = range.first; i < range.last; ++i)
    TAP_DISPATCH(lamb_update, value(i), grad(i), moment(0, i), moment(1, i), step);
}

}  // namespace tapestry
