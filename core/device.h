// Where a tensor lives.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "tapestry_config.h"  // kHasGpu

namespace tapestry {

enum class Device : std::uint8_t { cpu, gpu };

inline std::string_view name_of(Device device) { return device == Device::cpu ? "cpu" : "gpu"; }
inline std::string to_text(Device device) { return std::string(name_of(device)); }

}  // namespace tapestry
