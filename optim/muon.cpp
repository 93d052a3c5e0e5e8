// Muon: options, who gets which update, and the calls of the two kernels.
#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "core/kernels/muon.h"
#include "optim/option_checks.h"

namespace tapestry {

namespace {

const MuonOptions& checked(const MuonOptions& o) {
  detail::check_unit("Muon", "momentum", o.momentum);
  detail::check_eps("Muon", "eps", o.eps);
  detail::check_not_negative("Muon", "weight_decay", o.weight_decay);
  detail::check_unit("Muon", "beta1", o.beta1);
  detail::check_unit("Muon", "beta2", o.beta2);
  detail::check_eps("Muon", "adamw_eps", o.adamw_eps);
  TAP_CHECK(o.iterations >= 1, "Muon: iterations must be at least 1, not ", o.iterations);
  return o;
}

}  // namespace

Muon::Groups Muon::join(std::vector<ParameterGroup> matrices, std::vector<ParameterGroup> others) {
  for (const ParameterGroup& group : matrices)
    for (const NamedParameter& p : group.parameters)
      TAP_CHECK(p.parameter->shape().rank() == 2, "Muon: ", p.name, " is ", p.parameter->shape(),
                ", but only matrices can be made orthogonal; list it among the others, which AdamW updates");
  const std::size_t count = matrices.size();
  std::move(others.begin(), others.end(), std::back_inserter(matrices));
  return {std::move(matrices), count};
}

Muon::Groups Muon::split(std::vector<NamedParameter> parameters, const Predicate& is_other) {
  ParameterGroup matrices;
  std::vector<NamedParameter> others;
  for (NamedParameter& p : parameters) {
    const bool other = p.parameter->shape().rank() != 2 || (is_other && is_other(p));
    (other ? others : matrices.parameters).push_back(std::move(p));
  }
  return join({std::move(matrices)}, decay_matrices_only(std::move(others)));
}

Muon::Muon(Groups groups, const MuonOptions& options)
    : Optimizer(std::move(groups.all),
                {{"m"},
                 {"v", [n = groups.matrices](
                           const Shape& s, std::size_t group) { return group < n ? std::nullopt : std::optional(s); }}},
                checked(options).weight_decay),
      options_(options),
      matrix_groups_(groups.matrices) {}
Muon::Muon(std::vector<ParameterGroup> matrices, std::vector<ParameterGroup> others, const MuonOptions& options)
    : Muon(join(std::move(matrices), std::move(others)), options) {}
Muon::Muon(std::vector<NamedParameter> parameters, const MuonOptions& options, const Predicate& is_other)
    : Muon(split(std::move(parameters), is_other), options) {}

void Muon::update(const Range& range) {
  const WriterScope writer("Muon.step");
  const MuonOptions& o = options_;
  for (std::size_t i = range.first; i < range.last; ++i) {
    if (group(i) >= matrix_groups_) {
      const AdamStep step{range.lr,           o.beta1,          o.beta2, o.adamw_eps,
                          range.weight_decay, range.grad_scale, true,    range.updates};
      TAP_DISPATCH(adam_update, value(i), grad(i), moment(0, i), moment(1, i), FlatRange{0, value(i).numel()}, step);
      continue;
    }
    const double in = static_cast<double>(value(i).shape()[0]), out = static_cast<double>(value(i).shape()[1]);
    const double scale = o.scale == MuonScale::match_adamw ? 0.2 * std::sqrt(std::max(in, out))
                                                           : std::sqrt(std::max(1.0, out / std::max(in, 1.0)));
    const MuonStep step{range.lr,           range.lr * scale, o.momentum, o.eps,
                        range.weight_decay, range.grad_scale, o.nesterov, o.iterations};
    TAP_DISPATCH(muon_update, value(i), grad(i), moment(0, i), step);
  }
}

}  // namespace tapestry
