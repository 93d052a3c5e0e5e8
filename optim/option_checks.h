// What the options of optimizers must be; the errors name the optimizer and the option. For constructors, before a
// parameter is touched.
#pragma once

#include <cmath>

#include "core/error.h"

namespace tapestry::detail {

inline void check_not_negative(const char* optimizer, const char* option, double value) {
  TAP_CHECK(std::isfinite(value) && value >= 0, optimizer, ": ", option, " must be finite and at least 0, not ", value);
}
inline void check_positive(const char* optimizer, const char* option, double value) {
  TAP_CHECK(std::isfinite(value) && value > 0, optimizer, ": ", option, " must be finite and above 0, not ", value);
}
inline void check_unit(const char* optimizer, const char* option, double value) {
  TAP_CHECK(value >= 0 && value < 1, optimizer, ": ", option, " must be in [0, 1), not ", value);
}
// Below it eps is 0 in f32, and a parameter whose gradient is 0 would become NaN.
inline void check_eps(const char* optimizer, const char* option, double value) {
  TAP_CHECK(std::isfinite(value) && value >= 1e-37, optimizer, ": ", option, " must be finite and at least 1e-37, not ",
            value);
}

}  // namespace tapestry::detail
