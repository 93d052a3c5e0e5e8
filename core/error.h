// The one exception type of the library, and the check that throws it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace tapestry {

// What every failed check throws. The message reads "op: what must hold, what was given; the fix".
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Text of one part of a message. Types of the library add an overload of to_text in their own header.
inline std::string to_text(std::string_view text) { return std::string(text); }
std::string to_text(double value);  // shortest form that reads back to the same value
template <class T>
requires std::is_integral_v<T> std::string to_text(T value) {
  if constexpr (std::is_same_v<T, bool>)
    return value ? "true" : "false";
  else if constexpr (std::is_same_v<T, char>)
    return std::string(1, value);
  else
    return std::to_string(value);
}

// The texts of all parts, one after the other.
template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::string text;
  (text.append(to_text(parts)), ...);
  return text;
}

template <class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail(const Parts&... parts) {
  throw Error(text_of(parts...));
}

}  // namespace tapestry

// Throws tapestry::Error with the concatenated parts unless the condition holds.
#define TAP_CHECK(condition, ...)    \
  do {                               \
    if (!(condition)) [[unlikely]]   \
      ::tapestry::fail(__VA_ARGS__); \
  } while (false)
