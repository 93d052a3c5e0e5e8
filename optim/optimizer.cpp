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

// The elements that a segment of `numel` takes up.
std::int64_t padded(std::int64_t numel, DType dtype) {
  const std::int64_t unit = kSegmentBytes / size_of(dtype);
  return (numel + unit - 1) / unit * unit;
}

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

Optimizer::Optimizer(std::vector<ParameterGroup> groups, std::vector<Moment> moments, double weight_decay) {
  pack(plan(groups, weight_decay));
  for (const Moment& moment : moments) add_moment(moment);
  attach();
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
      offset += padded(value.numel(), value.dtype());
    }
  }
  TAP_CHECK(!segments_.empty(), "optimizer: there is no parameter to train");
  ranges_.reserve(segments_.size());

  return offset;
}

// Copies the values into their buffer and points the parameters there. The memory that the values had goes
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
}

// Takes over the gradients and makes this the owner: the last step of construction, since none that fails may own.
void Optimizer::attach() {
  for (Segment& s : segments_) {
    Tensor grad = view(grads_, s);
    if (s.state->grad.set) grad.copy_from(s.state->grad.tensor);
    s.state->grad.tensor = std::move(grad);
    s.state->grad.pinned = true;
    s.state->pack = this;
  }
}

void Optimizer::add_moment(const Moment& moment) {
  std::vector<std::optional<Shape>> shapes;
  std::vector<std::int64_t> offsets;
  std::int64_t size = 0;
  for (const Segment& s : segments_) {
    const Shape& own = s.state->value.shape();
    shapes.push_back(moment.shape ? moment.shape(own, s.group) : own);
    offsets.push_back(size);
    if (shapes.back()) size += padded(shapes.back()->numel(), values_.dtype());
  }
  const MemoryScope scope(MemoryCategory::optimizer);
  const Tensor flat = zeros({size}, values_.dtype(), values_.device());
  for (std::size_t i = 0; i < segments_.size(); ++i)
    segments_[i].moments.push_back(
        shapes[i] ? Tensor(flat.storage(), offsets[i] * size_of(flat.dtype()), *shapes[i], flat.dtype()) : Tensor());
  moments_.push_back(flat);
  moment_names_.push_back(moment.name);
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
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Segment& s = segments_[i];
    if (s.state->grad.set) {
      if (!previous || previous->group != s.group || previous->updates != s.updates)
        ranges_.push_back({{s.offset, 0}, s.updates + 1, lr * s.lr_scale, s.weight_decay, 1, i, i});
      ranges_.back().end = s.offset + s.numel;
      ranges_.back().last = i + 1;
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
    for (const Segment& s : segments_)
      if (s.moments[m]) result.push_back({text_of(moment_names_[m], "/", s.name), s.moments[m]});
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

}  // namespace tapestry
