#include "core/error.h"

#include <fmt/format.h>

namespace tapestry {

std::string to_text(double value) { return fmt::format("{}", value); }

}  // namespace tapestry
