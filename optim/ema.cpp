// The moving average of weights and the exchange with them.
#include "optim/ema.h"

#include <algorithm>

#include "core/kernels/optimizer.h"
#include "optim/option_checks.h"

namespace tapestry {

Ema::Ema(std::vector<NamedParameter> parameters, const EmaOptions& options)
    : options_(options), updates_(zeros({1}, DType::i64)) {
  detail::check_unit("Ema", "decay", options.decay);
  TAP_CHECK(!parameters.empty(), "Ema: there is no parameter to average");
  const MemoryScope scope(MemoryCategory::parameters);
  for (NamedParameter& p : parameters) {
    TAP_CHECK(p.parameter->dtype() == DType::f32 || p.parameter->dtype() == DType::f64, "Ema: ", p.name, " is ",
              p.parameter->dtype(), ", but an average is kept in f32 or f64; average the master weights");
    entries_.push_back({std::move(p.name), p.parameter->state(), p.parameter->value().clone()});
  }
}

void Ema::update() {
  TAP_CHECK(!swapped_, "Ema.update: the model holds the average; end the Ema::Swap first");
  const double t = static_cast<double>(updates());
  const double decay = options_.warm_up ? std::min(options_.decay, (1 + t) / (10 + t)) : options_.decay;
  for (Entry& e : entries_) TAP_DISPATCH(ema_update, e.average, e.state->value, decay);
  ++updates_.mutable_data<std::int64_t>()[0];
}

std::int64_t Ema::updates() const { return updates_.data<std::int64_t>()[0]; }

const Tensor& Ema::average(std::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.name == name; });
  TAP_CHECK(found != entries_.end(), "Ema.average: no parameter is named ", name);
  return found->average;
}

void Ema::copy_to_model() {
  TAP_CHECK(!swapped_, "Ema.copy_to_model: the model holds the average; end the Ema::Swap first");
  const WriterScope writer("Ema.copy_to_model");
  for (Entry& e : entries_) e.state->value.copy_from(e.average);
}

void Ema::swap() {
  const WriterScope writer("Ema::Swap");
  for (Entry& e : entries_) TAP_DISPATCH(swap_elements, e.average, e.state->value);
  swapped_ = !swapped_;
}

Ema::Swap::Swap(Ema& ema) : ema_(ema) {
  TAP_CHECK(!ema.swapped_, "Ema::Swap: the model holds the average already");
  ema_.swap();
}
Ema::Swap::~Swap() { ema_.swap(); }

// A dot would not be a member's name, but it keeps the names of the parameters.
void Ema::visit(Visitor& v) {
  v("updates", updates_);
  for (Entry& e : entries_) v(text_of("average.", e.name), e.average);
}

}  // namespace tapestry
