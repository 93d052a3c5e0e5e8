// Packing of parameters into flat buffers, and the step that every optimizer shares.
#include "optim/optimizer.h"

#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "core/kernels/rescale.h"
#include "optim/grad_scaler.h"
#include "optim/outlier_filter.h"

namespace tapestry {

namespace {

constexpr std::int64_t kSegmentBytes = 64;  // segments begin at multiples of it
constexpr std::int64_t kMaxSkipped = 10;

bool finite_and_not_negative(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

std::string_view reason_text(SkipReason reason) {
  switch (reason) {
    case SkipReason::none:
      return "";
    case SkipReason::loss_not_finite:
      return "the loss is not finite";
    case SkipReason::overflow:
      return "the gradient is not finite";
    case SkipReason::loss_outlier:
      return "the loss is an outlier";
    case SkipReason::grad_norm_outlier:
      return "the gradient norm is an outlier";
  }
  fail("reason_text: not a SkipReason");
}

std::vector<ParameterGroup> decay_matrices_only(std::vector<NamedParameter> parameters) {
  ParameterGroup matrices, others{.weight_decay = 0};
  for (NamedParameter& p : parameters)
    (p.parameter->shape().rank() >= 2 ? matrices : others).parameters.push_back(std::move(p));
  std::vector<ParameterGroup> groups;
  for (ParameterGroup* group : {&matrices, &others})
    if (!group->parameters.empty()) groups.push_back(std::move(*group));
  return groups;
}

Optimizer::Optimizer(std::vector<ParameterGroup> groups, std::vector<std::string> moment_names, double weight_decay)
    : moment_names_(std::move(moment_names)) {
  pack(plan(groups, weight_decay));
}

// Checks everything and lays out the segments; no parameter is touched yet. Returns the size of a buffer.
std::int64_t Optimizer::plan(std::vector<ParameterGroup>& groups, double weight_decay) {
  std::unordered_set<const detail::ParameterState*> seen;
  std::int64_t offset = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const double decay = groups[g].weight_decay.value_or(weight_decay);
    TAP_CHECK(finite_and_not_negative(groups[g].lr_scale), "optimizer: lr_scale must be finite and at least 0, not ",
              groups[g].lr_scale);
    TAP_CHECK(finite_and_not_negative(decay), "optimizer: weight_decay must be finite and at least 0, not ", decay);
    for (NamedParameter& p : groups[g].parameters) {
      const auto& state = p.parameter->state();
      TAP_CHECK(seen.insert(state.get()).second, "optimizer: ", p.name, " is listed twice; give each parameter once");
      TAP_CHECK(!state->pack, "optimizer: ", p.name, " is already owned by another optimizer; destroy that one first");
      const Tensor& value = state->value;
      const Tensor& first = segments_.empty() ? value : segments_.front().state->value;
      TAP_CHECK(value.dtype() == DType::f32 || value.dtype() == DType::f64, "optimizer: ", p.name, " is ",
                value.dtype(), ", but parameters are kept in f32 or f64; convert the model first");
      TAP_CHECK(value.dtype() == first.dtype() && value.device() == first.device(), "optimizer: ", p.name, " is ",
                value.dtype(), " on ", value.device(), ", but the others are ", first.dtype(), " on ", first.device());
      segments_.push_back({std::move(p.name), state, offset, value.numel(), 0, groups[g].lr_scale, decay, g});
      const std::int64_t unit = kSegmentBytes / size_of(value.dtype());
      offset += (value.numel() + unit - 1) / unit * unit;
    }
  }
  TAP_CHECK(!segments_.empty(), "optimizer: there is no parameter to train");
  ranges_.reserve(segments_.size());

  return offset;
}

// Copies values and gradients into the buffers and points the parameters there. The memory that the values had goes
// back to the system before there are gradients and moments, so that the peak is that of training.
void Optimizer::pack(std::int64_t size) {
  const DType dtype = segments_.front().state->value.dtype();
  const Device device = segments_.front().state->value.device();
  auto flat = [&](MemoryCategory category) {
    const MemoryScope scope(category);
    return zeros({size}, dtype, device);
  };
  values_ = flat(MemoryCategory::parameters);
  for (Segment& s : segments_) {
    Tensor value = view(values_, s);
    value.copy_from(s.state->value);
    s.state->value = std::move(value);
  }
  trim_memory();
  grads_ = flat(MemoryCategory::gradients);
  for (std::size_t i = 0; i < moment_names_.size(); ++i) moments_.push_back(flat(MemoryCategory::optimizer));
  for (Segment& s : segments_) {
    Tensor grad = view(grads_, s);
    if (s.state->grad.set) grad.copy_from(s.state->grad.tensor);
    s.state->grad.tensor = std::move(grad);
    s.state->grad.pinned = true;
    s.state->pack = this;
  }
}

Optimizer::~Optimizer() {
  for (Segment& s : segments_) {
    if (s.state->pack != this) continue;
    s.state->pack = nullptr;
    s.state->grad.pinned = false;
    if (!s.state->grad.set) s.state->grad.tensor = Tensor();
  }
}

Tensor Optimizer::view(const Tensor& flat, const Segment& segment) const {
  return Tensor(flat.storage(), segment.offset * size_of(flat.dtype()), segment.state->value.shape(), flat.dtype());
}

void Optimizer::unset_gradients() noexcept {
  for (Segment& s : segments_) s.state->unset_grad();
  unscaled_ = {};
}

StepReport Optimizer::step(const StepOptions& options) {
  auto check = [this](const char* option, double value, const char* meaning) {
    TAP_CHECK(finite_and_not_negative(value), name(), ".step: ", option, " must be ", meaning, ", not ", value);
  };
  check("lr", options.lr, "given, finite and at least 0");
  check("clip_norm", options.clip_norm, "finite and at least 0 (no clipping)");
  check("clip_value", options.clip_value, "finite and at least 0 (no clipping)");
  collect_ranges(options.lr);
  TAP_CHECK(!ranges_.empty(), name(), ".step: no parameter has a gradient; call backward first");
  forget_stale_unscale();
  const StepReport report = inspect(options);
  if (!report.skipped) apply(options, report);
  if (options.scaler) options.scaler->update(report.overflow);
  if (report.skipped) count_skipped(report, options.loss);
  unset_gradients();
  return report;
}

// Gradients may have been unset one by one and made anew: then they carry a scale again.
void Optimizer::forget_stale_unscale() {
  for (const Segment& s : segments_)
    if (s.state->grad.set && s.state->loss_scale != 1) unscaled_ = {};
}

// The loss scale that the gradients carry: one and the same, and that of the scaler.
double Optimizer::loss_scale(const GradScaler* scaler) const {
  TAP_CHECK(!unscaled_.by || scaler == unscaled_.by, name(),
            ".step: a GradScaler has unscaled the gradients; give it: ", "step({.lr = ..., .scaler = &scaler})");
  const double expected = scaler && !unscaled_.by ? scaler->window_scale() : 1;
  for (const Segment& s : segments_) {
    const double scale = s.state->loss_scale;
    if (!s.state->grad.set || scale == expected) continue;
    TAP_CHECK(scaler, name(), ": the gradients carry the loss scale ", scale,
              " of a GradScaler; give it: ", "step({.lr = ..., .scaler = &scaler})");
    TAP_CHECK(scale != 1, name(), ": the gradients carry no loss scale and the scaler's is ", expected,
              "; call scaler.backward(loss) in place of tape.backward(loss)");
    fail(name(), ": the gradient of ", s.name, " carries the loss scale ", scale, " and the scaler's is ", expected,
         "; it is of an earlier window or another scaler: step() or zero_grad() before the next backward");
  }
  return expected;
}

StepReport Optimizer::inspect(const StepOptions& options) {
  StepReport report{.scale = loss_scale(options.scaler)};
  report.grad_norm = gradient_norm() / report.scale;
  report.overflow = unscaled_.overflow || !std::isfinite(report.grad_norm);
  if (!std::isfinite(options.loss)) {
    report.reason = SkipReason::loss_not_finite;
  } else if (report.overflow) {
    report.reason = SkipReason::overflow;
  } else if (options.outliers) {
    const OutlierFilter::Kind kind = options.outliers->judge(options.loss, report.grad_norm);
    if (kind == OutlierFilter::Kind::loss) report.reason = SkipReason::loss_outlier;
    if (kind == OutlierFilter::Kind::grad_norm) report.reason = SkipReason::grad_norm_outlier;
  }
  report.skipped = report.reason != SkipReason::none;
  return report;
}

void Optimizer::apply(const StepOptions& options, const StepReport& report) {
  double norm = report.grad_norm;
  if (options.clip_value > 0) {
    for (const Range& range : ranges_) TAP_DISPATCH(rescale, grads_, range, 1, options.clip_value * report.scale);
    if (options.clip_norm > 0) norm = gradient_norm() / report.scale;
  }
  const bool clip = options.clip_norm > 0 && norm > options.clip_norm;
  for (Range& range : ranges_) {
    range.grad_scale = (clip ? options.clip_norm / norm : 1) / report.scale;
    update(range);
  }
  for (Segment& s : segments_) s.updates += s.state->grad.set;
  ++steps_;
  skipped_in_a_row_ = 0;
}

void Optimizer::unscale(const GradScaler& scaler) {
  forget_stale_unscale();
  TAP_CHECK(!unscaled_.by, "GradScaler.unscale: the gradients of this ", name(),
            " are unscaled already; call it once between two steps");
  collect_ranges(0);
  TAP_CHECK(!ranges_.empty(), "GradScaler.unscale: no parameter of this ", name(), " has a gradient; call ",
            "scaler.backward(loss) first");
  const double scale = loss_scale(&scaler);
  unscaled_ = {&scaler, !std::isfinite(gradient_norm())};
  for (const Range& range : ranges_)
    TAP_DISPATCH(rescale, grads_, range, 1 / scale, std::numeric_limits<double>::infinity());
  for (Segment& s : segments_) s.state->loss_scale = 1;
}

// Consecutive segments with the same settings become one range, padding included: it is zero and stays so.
void Optimizer::collect_ranges(double lr) {
  ranges_.clear();
  const Segment* previous = nullptr;
  for (const Segment& s : segments_) {
    if (s.state->grad.set) {
      if (previous && previous->group == s.group && previous->updates == s.updates)
        ranges_.back().end = s.offset + s.numel;
      else
        ranges_.push_back({{s.offset, s.offset + s.numel}, s.updates + 1, lr * s.lr_scale, s.weight_decay, 1});
    }
    previous = s.state->grad.set ? &s : nullptr;
  }
}

double Optimizer::gradient_norm() const {
  double sum = 0;
  for (const Range& range : ranges_) TAP_DISPATCH(square_sum, grads_, range, sum);
  return std::sqrt(sum);
}

// The tenth in a row is an error: skipping was meant for a rare overflow.
void Optimizer::count_skipped(const StepReport& report, double loss) {
  ++skipped_;
  if (++skipped_in_a_row_ < kMaxSkipped) return;
  std::string culprit;
  for (const Segment& s : segments_) {
    double sum = 0;
    const FlatRange range{s.offset, s.offset + s.numel};
    if (s.state->grad.set) TAP_DISPATCH(square_sum, grads_, range, sum);
    if (!std::isfinite(sum) && culprit.empty()) culprit = text_of(" (first in ", s.name, ")");
  }
  unset_gradients();
  skipped_in_a_row_ = 0;
  fail(name(), ".step: ", kMaxSkipped, " steps in a row were skipped, now because ", reason_text(report.reason),
       ": the loss is ", loss, ", the gradient norm ", report.grad_norm, culprit, " and the loss scale ", report.scale,
       "; lower the learning rate, clip the gradients, or look at the data");
}

std::vector<Optimizer::NamedState> Optimizer::state() const {
  std::vector<NamedState> result;
  for (std::size_t m = 0; m < moments_.size(); ++m)
    for (const Segment& s : segments_) result.push_back({text_of(moment_names_[m], "/", s.name), view(moments_[m], s)});
  return result;
}

Optimizer::Counters Optimizer::counters() const {
  Counters counters{steps_, skipped_, skipped_in_a_row_, {}};
  for (const Segment& s : segments_) counters.updates[s.name] = s.updates;
  return counters;
}

void Optimizer::set_counters(const Counters& counters) {
  for (const Segment& s : segments_)
    TAP_CHECK(counters.updates.contains(s.name), name(), ": the counters lack the parameter ", s.name);
  for (Segment& s : segments_) s.updates = counters.updates.at(s.name);
  steps_ = counters.steps;
  skipped_ = counters.skipped;
  skipped_in_a_row_ = counters.skipped_in_a_row;
}

namespace {

void check_unit(const char* what, double value) {
  TAP_CHECK(value >= 0 && value < 1, what, " must be in [0, 1), not ", value);
}

}  // namespace

Sgd::Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options)
    : Optimizer(std::move(groups),
                options.momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"velocity"},
                options.weight_decay),
      options_(options) {
  TAP_CHECK(finite_and_not_negative(options.momentum), "Sgd: momentum must be finite and at least 0, not ",
            options.momentum);
  TAP_CHECK(!options.nesterov || options.momentum > 0, "Sgd: nesterov needs a momentum above 0");
}
Sgd::Sgd(std::vector<NamedParameter> parameters, const SgdOptions& options)
    : Sgd(decay_matrices_only(std::move(parameters)), options) {}

void Sgd::update(const Range& range) {
  const WriterScope writer("Sgd.step");
  const SgdStep step{range.lr,         options_.momentum, range.weight_decay,
                     range.grad_scale, options_.nesterov, range.updates};
  Tensor none;
  TAP_DISPATCH(sgd_update, values_, grads_, moments_.empty() ? none : moments_[0], range, step);
}

AdamW::AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options)
    : Optimizer(std::move(groups), {"m", "v"}, options.weight_decay), options_(options) {
  check_unit("AdamW: beta1", options.beta1);
  check_unit("AdamW: beta2", options.beta2);
  // Below it eps is 0 in f32, and a parameter whose gradient is 0 would become NaN.
  TAP_CHECK(std::isfinite(options.eps) && options.eps >= 1e-37, "AdamW: eps must be finite and at least 1e-37, not ",
            options.eps);
}
AdamW::AdamW(std::vector<NamedParameter> parameters, const AdamWOptions& options)
    : AdamW(decay_matrices_only(std::move(parameters)), options) {}

void AdamW::update(const Range& range) {
  const WriterScope writer("AdamW.step");
  const AdamWStep step{range.lr,           options_.beta1,   options_.beta2, options_.eps,
                       range.weight_decay, range.grad_scale, range.updates};
  TAP_DISPATCH(adamw_update, values_, grads_, moments_[0], moments_[1], range, step);
}

}  // namespace tapestry
