// What gradcheck says: a line if the function is right, the worst entry if not.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "autograd/gradcheck.h"

namespace tapestry {
namespace {

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", value);
  return text;
}

std::string long_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

// "[1, 4]": the position of a flat index.
std::string position(const Shape& shape, std::int64_t flat) {
  std::string text = "[";
  const auto strides = shape.strides();
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t stride = strides[static_cast<std::size_t>(axis)];
    text += text_of(axis ? ", " : "", flat / stride % shape[axis]);
  }
  return text + "]";
}

std::string where(const GradcheckReport::Entry& e) {
  const std::string output = e.output_index < 0
                                 ? std::string("<random cotangent, outputs>")
                                 : text_of("output ", e.output, position(e.output_shape, e.output_index));
  const std::string input = e.input_index < 0 ? text_of("<", e.input, ", random direction>")
                                              : text_of(e.input, position(e.input_shape, e.input_index));
  return text_of("d ", output, " / d ", input);
}

std::string plural(std::int64_t count, const char* what) { return text_of(count, what, count == 1 ? "" : "s"); }

// ", 2 frozen parameters not checked (weight, bias)"
std::string frozen_text(const std::vector<std::string>& names) {
  if (names.empty()) return {};
  std::string text =
      text_of(", ", plural(static_cast<std::int64_t>(names.size()), " frozen parameter"), " not checked (");
  for (std::size_t i = 0; i < names.size(); ++i) text += text_of(i ? ", " : "", names[i]);
  return text + ")";
}

std::string steps(const GradcheckReport& report) {
  if (report.sweep.empty()) return {};
  std::string text = "\n  steps      ";
  for (const GradcheckReport::SweepPoint& p : report.sweep)
    text += text_of(" ", short_number(p.step), ": ", long_number(p.numeric), ";");
  text.pop_back();
  return text + (report.backward_is_wrong
                     ? "\n              the numeric value settles elsewhere: the backward pass is wrong"
                     : "\n              the numeric value agrees for some step or never settles: a kink or little "
                       "precision, not surely the backward pass");
}

}  // namespace

std::string_view name_of(GradcheckFault fault) {
  switch (fault) {
    case GradcheckFault::none:
      return "none";
    case GradcheckFault::wrong_gradient:
      return "wrong gradient";
    case GradcheckFault::not_finite:
      return "not finite";
    case GradcheckFault::not_deterministic:
      return "not deterministic";
    case GradcheckFault::wrong_write:
      return "wrong write";
    case GradcheckFault::too_many_kinks:
      return "too many kinks";
    case GradcheckFault::not_visited:
      return "parameter not visited";
    case GradcheckFault::error:
      return "error";
  }
  fail("name_of: not a GradcheckFault");
}

std::string_view name_of(GradcheckDiagnosis diagnosis) {
  constexpr std::string_view kNames[] = {
      "none",         "zero gradient", "sign flipped", "constant factor", "missing factor", "wrong power",
      "wrong input",  "transposed",    "misplaced",    "wrong axis",      "missing sum",    "missing slice",
      "missing term", "stale value",   "wrong slice",  "wrong region",    "always adds",    "always assigns"};
  const auto index = static_cast<std::size_t>(diagnosis);
  TAP_CHECK(index < std::size(kNames), "name_of: not a GradcheckDiagnosis");
  return kNames[index];
}

double GradcheckReport::Entry::error() const {
  const double difference = std::abs(analytic - numeric);
  return difference == 0 ? 0 : difference / scale;
}

std::string GradcheckReport::text() const {
  const std::string counts =
      text_of(full_jacobian ? text_of(compared, " entries of the full Jacobian")
                            : text_of(compared, " random directions and elements (seed ", seed, ")"),
              " of ", plural(inputs, " input"), " and ", plural(parameters, " parameter"), " compared, ", kinks,
              " skipped on a kink", frozen_text(frozen));
  if (passed())
    return text_of("gradcheck passed: ", counts, "; worst error ", short_number(worst.error()), " of ",
                   short_number(tolerance), " allowed");
  std::string text = text_of("gradcheck failed (", name_of(fault), "): ", message);
  if (!diagnosis_text.empty())
    text += text_of("\n  diagnosis   ", name_of(diagnosis), ": ", diagnosis_text);
  else if (fault == GradcheckFault::wrong_gradient)
    text += "\n  diagnosis   none: no kind of mistake that is known here explains every entry";
  if (worst.input.empty()) return text;
  text += text_of("\n  worst       ", where(worst));
  text += text_of("\n  analytic    ", long_number(worst.analytic));
  text += text_of("\n  numeric     ", long_number(worst.numeric), " +- ", short_number(worst.error_bar));
  if (std::isfinite(worst.error()))
    text += text_of("\n  difference  ", short_number(std::abs(worst.analytic - worst.numeric)), ", ",
                    short_number(worst.error()), " of the scale ", short_number(worst.scale), "; allowed ",
                    short_number(worst.allowed), " (tolerance ", short_number(tolerance), ")");
  text += steps(*this);
  return text + text_of("\n  counts      ", counts, ", ", wrong, " wrong");
}

}  // namespace tapestry
