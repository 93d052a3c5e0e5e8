// RmsProp: options and the call of its kernel.
#include "optim/rmsprop.h"

#include "optim/option_checks.h"

namespace tapestry {

namespace {

const RmsPropOptions& checked(const RmsPropOptions& o) {
  detail::check_unit("RmsProp", "alpha", o.alpha);
  detail::check_eps("RmsProp", "eps", o.eps);
  detail::check_not_negative("RmsProp", "momentum", o.momentum);
  detail::check_not_negative("RmsProp", "weight_decay", o.weight_decay);
  return o;
}

}  // namespace

RmsProp::RmsProp(std::vector<ParameterGroup> groups, const RmsPropOptions& options)
    : Optimizer(
          std::move(groups),
          [&] {
            std::vector<Moment> moments = {{"v"}};
            if (options.centered) moments.push_back({"mean"});
            if (options.momentum > 0) moments.push_back({"velocity"});
            return moments;
          }(),
          checked(options).weight_decay),
      options_(options) {}
RmsProp::RmsProp(std::vector<NamedParameter> parameters, const RmsPropOptions& options)
    : RmsProp(decay_matrices_only(std::move(parameters)), options) {}

void RmsProp::update(const Range& range) {
  const WriterScope writer("RmsProp.step");
  const RmsPropStep step{range.lr,           options_.alpha,    options_.eps,
                         range.weight_decay, options_.momentum, range.grad_scale};
  Tensor none;
  TAP_DISPATCH(rmsprop_update, values_, grads_, moments_[0], options_.centered ? moments_[1] : none,
               options_.momentum > 0 ? moments_.back() : none, range, step);
}

}  // namespace tapestry
