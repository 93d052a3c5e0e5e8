// Adam and AdamW: options and the call of their kernel.
#include "optim/adam.h"

#include "optim/option_checks.h"

namespace tapestry {

namespace {

const AdamWOptions& checked(const AdamWOptions& o) {
  detail::check_unit("AdamW", "beta1", o.beta1);
  detail::check_unit("AdamW", "beta2", o.beta2);
  detail::check_eps("AdamW", "eps", o.eps);
  detail::check_not_negative("AdamW", "weight_decay", o.weight_decay);
  return o;
}

}  // namespace

AdamW::AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options)
    : Optimizer(std::move(groups), {{"m"}, {"v"}}, checked(options).weight_decay), options_(options) {}
AdamW::AdamW(std::vector<NamedParameter> parameters, const AdamWOptions& options)
    : AdamW(decay_matrices_only(std::move(parameters)), options) {}

void AdamW::update(const Range& range) {
  const WriterScope writer("AdamW.step");
  const AdamStep step{range.lr,           options_.beta1,   options_.beta2, options_.eps,
                      range.weight_decay, range.grad_scale, true,           range.updates};
  TAP_DISPATCH(adam_update, values_, grads_, moments_[0], moments_[1], range, step);
}

namespace {

const AdamOptions& checked(const AdamOptions& o) {
  detail::check_unit("Adam", "beta1", o.beta1);
  detail::check_unit("Adam", "beta2", o.beta2);
  detail::check_eps("Adam", "eps", o.eps);
  detail::check_not_negative("Adam", "weight_decay", o.weight_decay);
  return o;
}

}  // namespace

Adam::Adam(std::vector<ParameterGroup> groups, const AdamOptions& options)
    : Optimizer(std::move(groups), {{"m"}, {"v"}}, checked(options).weight_decay), options_(options) {}
Adam::Adam(std::vector<NamedParameter> parameters, const AdamOptions& options)
    : Adam(decay_matrices_only(std::move(parameters)), options) {}

void Adam::update(const Range& range) {
  const WriterScope writer("Adam.step");
  const AdamStep step{range.lr,           options_.beta1,   options_.beta2, options_.eps,
                      range.weight_decay, range.grad_scale, false,          range.updates};
  TAP_DISPATCH(adam_update, values_, grads_, moments_[0], moments_[1], range, step);
}

}  // namespace tapestry
