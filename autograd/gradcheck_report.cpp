// What gradcheck says: a line if the function is right, the worst entry if not.
#include <algorithm>
#include <cmath>
#include <cstdio>

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
  const std::string output = e.output_index < 0 ? std::string("<random cotangent, outputs>")
                                                : text_of("output ", e.output, position(e.output_shape, e.output_index));
  const std::string input = e.input_index < 0 ? text_of("<", e.input, ", random direction>")
                                              : text_of(e.input, position(e.input_shape, e.input_index));
  return text_of("d ", output, " / d ", input);
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

double GradcheckReport::Entry::error() const {
  const double difference = std::abs(analytic - numeric);
  return difference == 0 ? 0 : difference / scale;
}

std::string GradcheckReport::text() const {
  const std::string counts =
      text_of(full_jacobian ? text_of(compared, " entries of the full Jacobian")
                           : text_of(compared, " random directions and elements (seed ", seed, ")"),
             " of ", inputs, " inputs and ", parameters, " parameters compared, ", kinks, " skipped on a kink");
  if (passed())
    return text_of("gradcheck passed: ", counts, "; worst error ", short_number(worst.error()), " of ",
                  short_number(tolerance), " allowed");
  std::string text = text_of("gradcheck failed (", name_of(fault), "): ", message);
  if (worst.input.empty()) return text;
  text += text_of("\n  worst       ", where(worst));
  text += text_of("\n  analytic    ", long_number(worst.analytic));
  text += text_of("\n  numeric     ", long_number(worst.numeric), " +- ", short_number(worst.error_bar));
  text += text_of("\n  difference  ", short_number(std::abs(worst.analytic - worst.numeric)), ", ",
                 short_number(worst.error()), " of the scale ", short_number(worst.scale), "; allowed ",
                 short_number(worst.allowed), " (tolerance ", short_number(tolerance), ")");
  return text + text_of("\n  counts      ", counts, ", ", wrong, " wrong");
}

}  // namespace tapestry
