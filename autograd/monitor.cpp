#include "autograd/monitor.h"

#include <algorithm>
#include <utility>

namespace tapestry {

namespace {

thread_local Monitor* innermost = nullptr;
thread_local std::uint32_t serials = 0;

// A record's note is its row, counted from 1, with the monitor that gave it.
constexpr int kRowBits = 20;

// How bad the values of a tensor are.
enum Severity { kFinite, kInf, kNan };
Severity severity(const ValueRange& range) { return range.nans > 0 ? kNan : range.infs() > 0 ? kInf : kFinite; }

bool measurable(const Tensor* t) { return t && *t && is_floating(t->dtype()); }

ValueRange measure(const Tensor& t) {
  ValueRange range;
  TAP_DISPATCH(value_range, t, range);
  return range;
}

// -inf as somebody wrote it down, to hide a score.
bool is_mask(const Monitor::Input& input, const ValueRange& range) {
  return !input.parameter && severity(range) == kInf && range.positive_infs == 0;
}

}  // namespace

Monitor::Monitor() : serial_(++serials), outer_(std::exchange(innermost, this)) {}

Monitor::Monitor(Module& model) : Monitor() {
  for (const NamedParameter& p : parameters(model)) {
    const std::size_t dot = p.name.rfind('.');
    names_[p.parameter->state().get()] = {p.name, dot == std::string::npos ? p.name : p.name.substr(0, dot)};
  }
}

Monitor::~Monitor() { innermost = outer_; }
Monitor* Monitor::current() { return innermost; }

void Monitor::clear() {
  serial_ = ++serials;  // notes that records still carry mean nothing any more
  rows_.clear();
  next_row_ = 0;
  layer_ = {};
  first_.reset();
}

void Monitor::Values::add(const ValueRange& range, DType dtype) {
  ++tensors;
  nonfinite_tensors += !range.finite();
  elements += range.elements;
  nans += range.nans;
  infs += range.infs();
  zeros += range.zeros;
  subnormals += range.subnormals;
  const double here = largest_finite(dtype);
  if (limit != 0 && range.largest() / here < largest / limit) return;
  largest = range.largest();
  limit = here;
}

const Monitor::Names& Monitor::names_of(const detail::ParameterState& state) {
  const auto found = names_.find(&state);
  if (found != names_.end()) return found->second;
  const std::string name = text_of("Parameter ", state.value.shape());
  return names_[&state] = {name, name};
}

std::size_t Monitor::row_index(std::string_view op, std::string_view layer, bool after) {
  const auto fits = [&](const Row& r) { return r.op == op && r.layer == layer && r.after == after; };
  std::size_t index = next_row_ < rows_.size() && fits(rows_[next_row_]) ? next_row_ : rows_.size();
  if (index == rows_.size())
    index = static_cast<std::size_t>(std::find_if(rows_.begin(), rows_.end(), fits) - rows_.begin());
  if (index == rows_.size()) {
    Row& row = rows_.emplace_back();
    row.op = op;
    row.layer = layer;
    row.after = after;
  }
  next_row_ = index + 1 < rows_.size() ? index + 1 : 0;
  return index;
}

std::uint32_t Monitor::forward(const char* op, std::span<const Tensor> outputs, std::span<const Input> inputs,
                               bool begins) {
  if (begins) {
    layer_ = {};
    dys_.clear();
  }
  bool after = true;
  for (const Input& input : inputs) {
    if (!input.parameter || !after) continue;
    layer_ = names_of(*input.parameter).layer;
    after = false;
  }
  const std::size_t index = row_index(op, layer_, after);
  Row& row = rows_[index];
  bool finite = true;
  for (const Tensor& y : outputs) {
    if (!measurable(&y)) continue;
    const ValueRange range = measure(y);
    row.output.add(range, y.dtype());
    row.dtype = y.dtype();
    row.shape = y.shape();
    finite &= range.finite();
  }
  const bool vague = first_ && !first_->backward && first_->op == "checkpoint";
  if (!finite && (!first_ || vague)) examine_forward(row, outputs, inputs);
  return serial_ << kRowBits | static_cast<std::uint32_t>(index + 1);
}

// Only here, where an output is not finite, are the inputs read.
void Monitor::examine_forward(const Row& row, std::span<const Tensor> outputs, std::span<const Input> inputs) {
  std::vector<Finding::Operand> operands;
  std::optional<Finding::Operand> given, made;
  Severity inputs_are = kFinite, outputs_are = kFinite;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!measurable(inputs[i].value)) continue;
    const Tensor& x = *inputs[i].value;
    operands.push_back({text_of("input ", describe(i, inputs[i])), x.dtype(), x.shape(), measure(x)});
    const ValueRange& range = operands.back().range;
    inputs_are = std::max(inputs_are, severity(range));
    if (!given && !range.finite() && !inputs[i].recorded && !is_mask(inputs[i], range)) given = operands.back();
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!measurable(&outputs[i])) continue;
    operands.push_back({text_of("output ", i), outputs[i].dtype(), outputs[i].shape(), measure(outputs[i])});
    const Severity here = severity(operands.back().range);
    if (here > outputs_are) made = operands.back();
    outputs_are = std::max(outputs_are, here);
  }
  if (outputs_are > inputs_are)
    found(row, false, false, *made, std::move(operands));
  else if (given)
    found(row, false, true, *given, std::move(operands));
}

std::size_t Monitor::noted_row(std::uint32_t note, const char* op) {
  const std::uint32_t row = note & ((1u << kRowBits) - 1);
  const bool ours = note >> kRowBits == (serial_ & ((1u << (32 - kRowBits)) - 1));
  return ours && row > 0 && row <= rows_.size() ? row - 1 : row_index(op, {}, true);
}

std::size_t Monitor::before_backward(std::uint32_t note, const char* op, std::span<const Tensor> dys) {
  Row& row = rows_[noted_row(note, op)];
  layer_ = row.layer;
  const std::size_t mark = dys_.size();
  for (std::size_t i = 0; i < dys.size(); ++i) {
    const Tensor& dy = dys[i];
    if (!measurable(&dy)) continue;
    const ValueRange range = measure(dy);
    row.gradient.add(range, dy.dtype());
    dys_.push_back({dy.dtype(), dy.shape(), range});
    // Every gradient so far was finite, so no record wrote this one.
    if (!range.finite() && !first_) found(row, true, true, {text_of("dy ", i), dy.dtype(), dy.shape(), range}, {});
  }
  return mark;
}

void Monitor::after_backward(std::uint32_t note, std::size_t mark, const char* op, std::span<const Input> gradients) {
  Severity dys_are = kFinite;
  for (std::size_t i = mark; i < dys_.size(); ++i) dys_are = std::max(dys_are, severity(dys_[i].range));
  const Input* bad = nullptr;
  for (const Input& g : gradients)
    if (!first_ && !bad && measurable(g.value) && severity(measure(*g.value)) > dys_are) bad = &g;
  if (bad) {
    std::vector<Finding::Operand> operands;
    for (std::size_t i = mark; i < dys_.size(); ++i)
      operands.push_back({text_of("dy ", i - mark), dys_[i].dtype, dys_[i].shape, dys_[i].range});
    std::size_t worst = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!measurable(gradients[i].value)) continue;
      const Tensor& dx = *gradients[i].value;
      if (&gradients[i] == bad) worst = operands.size();
      operands.push_back(
          {text_of("the gradient of input ", describe(i, gradients[i])), dx.dtype(), dx.shape(), measure(dx)});
    }
    const Finding::Operand tensor = operands[worst];
    found(rows_[noted_row(note, op)], true, false, tensor, std::move(operands));
  }
  dys_.resize(mark);
}

void Monitor::parameter_gradient(const detail::ParameterState& state) {
  const Tensor& gradient = state.grad.tensor;
  Row& row = rows_[row_index({}, names_of(state).parameter, false)];
  row.gradient.add(measure(gradient), gradient.dtype());
  row.dtype = gradient.dtype();
  row.shape = gradient.shape();
}

std::string Monitor::describe(std::size_t index, const Input& input) {
  if (input.parameter) return text_of(index, " (", names_of(*input.parameter).parameter, ")");
  return text_of(index, input.recorded ? "" : " (not made by an op)");
}

void Monitor::found(const Row& row, bool backward, bool given, const Finding::Operand& tensor,
                    std::vector<Finding::Operand> operands) {
  first_ = Finding{row.op, row.layer, row.after, backward, given, tensor, std::move(operands)};
}

std::optional<Finding> find_first_nan(Module& model, const std::function<void()>& step) {
  Monitor monitor(model);
  zero_grad(model);
  try {
    step();
  } catch (const Error&) {
    zero_grad(model);
    if (!monitor.first()) throw;
  }
  zero_grad(model);
  return monitor.first();
}

}  // namespace tapestry
