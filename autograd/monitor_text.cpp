// What Monitor and Finding say: one line for a finding, tables for counts and headroom.
#include <fmt/format.h>

#include <cmath>

#include "autograd/monitor.h"

namespace tapestry {

namespace {

std::string place(const Shape& shape, std::int64_t flat) {
  const auto strides = shape.strides();
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const auto stride = strides[static_cast<std::size_t>(axis)];
    text += fmt::format("{}{}", axis ? ", " : "", flat / stride % shape[axis]);
  }
  return text + "]";
}

std::string counts(const ValueRange& r) {
  std::string text;
  const auto add = [&](std::int64_t count, const char* what) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  };
  add(r.nans, "NaN");
  add(r.positive_infs, "inf");
  add(r.negative_infs, "-inf");
  return text;
}

std::string summary(const Finding::Operand& o) {
  const ValueRange& r = o.range;
  std::string text = fmt::format("{} {} {}", o.name, name_of(o.dtype), to_text(o.shape));
  if (r.elements == 0) return text;
  text += r.min > r.max ? " without a finite value" : fmt::format(" from {:.4g} to {:.4g}", r.min, r.max);
  return r.finite() ? text : text + " with " + counts(r);
}

std::string where(const std::string& layer, bool after) {
  return layer.empty() ? "" : fmt::format(" {} {}", after ? "after" : "at", layer);
}

std::string share(std::int64_t part, std::int64_t all) {
  return part == 0 ? "-" : fmt::format("{:.3g}%", 100.0 * static_cast<double>(part) / static_cast<double>(all));
}

// How many times the largest magnitude can double.
std::string headroom(const Monitor::Values& v) {
  return v.largest == 0 ? "-" : fmt::format("2^{:.1f}", std::log2(v.limit / v.largest));
}

std::string label(const Monitor::Row& row) {
  return (row.op.empty() ? "gradient of " + row.layer : row.op + where(row.layer, row.after));
}

std::string values_text(const Monitor::Values& v) {
  if (v.tensors == 0) return fmt::format("{:>10} {:>8} {:>7} {:>7}", "", "", "", "");
  return fmt::format("{:>10.4g} {:>8} {:>7} {:>7}", v.largest, headroom(v), share(v.subnormals, v.elements),
                     share(v.zeros, v.elements));
}

std::string bad_text(const Monitor::Values& v) {
  if (v.tensors == 0) return fmt::format("{:>13} {:>9} {:>9}", "", "", "");
  return fmt::format("{:>13} {:>9} {:>9}", fmt::format("{} of {}", v.nonfinite_tensors, v.tensors), v.nans, v.infs);
}

}  // namespace

std::string Finding::text() const {
  const ValueRange& r = tensor.range;
  const char* value = std::isnan(r.first_value) ? "NaN" : r.first_value > 0 ? "inf" : "-inf";
  std::string line = fmt::format("{}{}{}: {}, first {} at {} (element {} of {}){}", backward ? "backward of " : "", op,
                                 where(layer, after), summary(tensor), value, place(tensor.shape, r.first_nonfinite),
                                 r.first_nonfinite, r.elements, given ? ", which it was given" : "");
  for (const Operand& o : operands)
    if (o.name != tensor.name) line += "; " + summary(o);
  return line;
}

std::string Monitor::overflow_text() const {
  std::string text;
  for (const Row& row : rows_) {
    if (row.output.nonfinite_tensors + row.gradient.nonfinite_tensors == 0) continue;
    if (text.empty())
      text = fmt::format("{:<48} {:>4} {:>13} {:>9} {:>9} {:>13} {:>9} {:>9}\n", "tensors with NaN or inf", "type",
                         "outputs", "NaN", "inf", "gradients", "NaN", "inf");
    text += fmt::format("{:<48} {:>4} {} {}\n", label(row), name_of(row.dtype), bad_text(row.output),
                        bad_text(row.gradient));
  }
  return text;
}

std::string Monitor::headroom_text() const {
  std::string text = fmt::format("{:<48} {:>4} {:>10} {:>8} {:>7} {:>7} {:>10} {:>8} {:>7} {:>7}\n", "headroom", "type",
                                 "output", "room", "subnorm", "zero", "gradient", "room", "subnorm", "zero");
  for (const Row& row : rows_)
    text += fmt::format("{:<48} {:>4} {} {}\n", label(row), name_of(row.dtype), values_text(row.output),
                        values_text(row.gradient));
  return text;
}

}  // namespace tapestry
