// A 128-bit content hash (XXH3): fast enough for every weight of a model, sensitive to every bit. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tapestry {

class Hash128 {
 public:
  Hash128();
  ~Hash128();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);  // its length first, so that "ab", "c" differs from "a", "bc"
  void add(std::int64_t number);
  std::string hex() const;  // of everything added so far: 32 hexadecimal digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_hex(std::span<const std::byte> bytes);

}  // namespace tapestry
