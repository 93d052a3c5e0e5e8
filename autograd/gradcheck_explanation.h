// Used by gradcheck where a gradient is wrong: adds the sweep over step sizes and the diagnosis to the report.
#pragma once

#include <functional>

#include "autograd/gradcheck_function.h"

namespace tapestry::detail {

// `step` is the step of the check, `worst_slope` gives the numeric value of report.worst for any other.
void explain(const CheckedFunction& function, double step, const std::function<double(double)>& worst_slope,
             GradcheckReport& report);

}  // namespace tapestry::detail
