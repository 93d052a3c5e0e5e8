// The message of the Error that a piece of code throws.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

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

// f throws an Error whose message contains every one of `parts`.
template <class F>
void check_error(F&& f, const std::vector<std::string>& parts) {
  const std::string text = message_of(f);
  for (const std::string& part : parts) CHECK_MESSAGE(has(text, part), text);
}
