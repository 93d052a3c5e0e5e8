// The message of the Error that a piece of code throws.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const tapestry::Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

inline bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }
