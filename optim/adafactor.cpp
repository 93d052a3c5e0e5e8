// Adafactor: options, the shapes of its moments and the call of its kernel for each parameter.
#include "optim/adafactor.h"

#include <algorithm>
#include <cmath>

#include "core/kernels/adafactor.h"
#include "optim/option_checks.h"

namespace tapestry {

namespace {

const AdafactorOptions& checked(const AdafactorOptions& o) {
  detail::check_not_negative("Adafactor", "beta2_decay", o.beta2_decay);
  detail::check_eps("Adafactor", "eps1", o.eps1);
  detail::check_not_negative("Adafactor", "eps2", o.eps2);
  detail::check_positive("Adafactor", "clip", o.clip);
  detail::check_not_negative("Adafactor", "weight_decay", o.weight_decay);
  return o;
}

// One axis, counted from the end, is reduced to 1; a vector has nothing to factor.
auto factored(int axis) {
  return [axis](const Shape& s, std::size_t) { return s.rank() < 2 ? std::nullopt : std::optional(s.with(axis, 1)); };
}

}  // namespace

Adafactor::Adafactor(std::vector<ParameterGroup> groups, const AdafactorOptions& options)
    : Optimizer(std::move(groups),
                {{"rows", factored(-1)},
                 {"columns", factored(-2)},
                 {"v", [](const Shape& s, std::size_t) { return s.rank() < 2 ? std::optional(s) : std::nullopt; }}},
                checked(options).weight_decay),
      options_(options) {}
Adafactor::Adafactor(std::vector<NamedParameter> parameters, const AdafactorOptions& options)
    : Adafactor(decay_matrices_only(std::move(parameters)), options) {}

void Adafactor::update(const Range& range) {
  const WriterScope writer("Adafactor.step");
  const double t = static_cast<double>(range.updates);
  const double rate = options_.relative_step ? std::min(range.lr, 1 / std::sqrt(t)) : range.lr;
  const AdafactorStep step{range.lr,
                           rate,
                           1 - std::pow(t, -options_.beta2_decay),
                           options_.eps1,
                           options_.eps2,
                           options_.clip,
                           range.weight_decay,
                           range.grad_scale,
                           options_.scale_by_value};
  for (std::size_t i = range.first; i < range.last; ++i)
    TAP_DISPATCH(adafactor_update, value(i), grad(i), moment(0, i), moment(1, i), moment(2, i), step);
}

}  // namespace tapestry
