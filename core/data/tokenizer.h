// Text to token ids and back.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"

namespace tapestry {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;   // throws for what it cannot express
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;  // throws for ids outside [0, vocabulary)
  // One line that tokenizer_from_description turns back into the same tokenizer; stored in checkpoints.
  virtual std::string description() const = 0;
};

// One token for each Unicode character of the text it was made from, in code point order.
class CharTokenizer : public Tokenizer {
 public:
  explicit CharTokenizer(std::string_view utf8_text);  // throws if empty, and for invalid UTF-8 with the byte offset
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(characters_.size()); }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<std::int32_t>& ids) const override;
  std::string description() const override;  // "char:" and the characters; "\u{a}" for control characters and "\"

 private:
  std::u32string characters_;
  std::unordered_map<char32_t, std::int32_t> ids_;
};

// 256 tokens, one for each byte; expresses any text.
class ByteTokenizer : public Tokenizer {
 public:
  std::int64_t vocabulary() const override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<std::int32_t>& ids) const override;
  std::string description() const override { return "byte"; }
};

// Throws for anything that description() does not produce.
std::unique_ptr<Tokenizer> tokenizer_from_description(std::string_view description);

// UTF-8 as in RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. For invalid bytes decode and check
// throw, naming `what` and the offset of the first bad sequence; encode throws for what is no character.
std::u32string decode_utf8(std::string_view bytes, std::string_view what);
void check_utf8(std::string_view bytes, std::string_view what);
std::string encode_utf8(std::u32string_view text);

}  // namespace tapestry
