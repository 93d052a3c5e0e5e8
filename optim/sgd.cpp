// Sgd: options and the call of its kernel.
#include "optim/sgd.h"

#include "optim/option_checks.h"

namespace tapestry {

namespace {

const SgdOptions& checked(const SgdOptions& o) {
  detail::check_not_negative("Sgd", "momentum", o.momentum);
  detail::check_not_negative("Sgd", "weight_decay", o.weight_decay);
  TAP_CHECK(!o.nesterov || o.momentum > 0, "Sgd: nesterov needs a momentum above 0");
  return o;
}

}  // namespace

Sgd::Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options)
    : Optimizer(std::move(groups), options.momentum == 0 ? std::vector<Moment>{} : std::vector<Moment>{{"velocity"}},
                checked(options).weight_decay),
      options_(options) {}
Sgd::Sgd(std::vector<NamedParameter> parameters, const SgdOptions& options)
    : Sgd(decay_matrices_only(std::move(parameters)), options) {}

void Sgd::update(const Range& range) {
  const WriterScope writer("Sgd.step");
  const SgdStep step{range.lr,         options_.momentum, range.weight_decay,
                     range.grad_scale, options_.nesterov, range.updates};
  Tensor none;
  TAP_DISPATCH(sgd_update, values_, grads_, moments_.empty() ? none : moments_[0], range, step);
}

}  // namespace tapestry
