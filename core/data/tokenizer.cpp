// Strict UTF-8, and the character and byte tokenizers.
#include "core/data/tokenizer.h"

#include <array>
#include <cctype>
#include <charconv>

namespace tapestry {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;

constexpr bool is_character(char32_t c) { return c <= kLastCodePoint && !(c >= 0xD800 && c <= 0xDFFF); }
// Line breaks and everything a terminal does not show as itself.
constexpr bool is_control(char32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029; }

std::string hex(char32_t value, bool upper = false, std::size_t digits = 1) {
  std::string text;
  for (; value || text.size() < digits; value >>= 4) text.insert(text.begin(), "0123456789abcdef"[value & 15]);
  if (upper)
    for (char& c : text) c = static_cast<char>(std::toupper(c));
  return text;
}

struct Decoded {
  char32_t character = 0;
  std::size_t length = 0;  // in bytes
  const char* fault = nullptr;
};

// The character that begins at bytes[at].
Decoded decode_one(std::string_view bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[at + i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xC0) return {0, 1, "a continuation byte without a start"};
  if (first >= 0xF8) return {0, 1, "a byte that UTF-8 never uses"};
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t c = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i >= bytes.size()) return {0, 1, "the text ends within a character"};
    if ((byte(i) & 0xC0) != 0x80) return {0, 1, "a character is cut short"};
    c = c << 6 | (byte(i) & 0x3Fu);
  }
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  if (c < kSmallest[length]) return {0, 1, "an overlong form"};
  if (c > kLastCodePoint) return {0, 1, "above U+10FFFF"};
  if (!is_character(c)) return {0, 1, "a surrogate"};
  return {c, length};
}

// Calls f(character, byte offset) for each character.
template <class F>
void for_each_character(std::string_view bytes, std::string_view what, F&& f) {
  for (std::size_t at = 0; at < bytes.size();) {
    const Decoded decoded = decode_one(bytes, at);
    if (decoded.fault) [[unlikely]]
      fail(what, ": invalid UTF-8 at byte ", at, " (0x", hex(static_cast<unsigned char>(bytes[at]), true, 2),
           "): ", decoded.fault, "; convert it, for example with iconv -t UTF-8");
    f(decoded.character, at);
    at += decoded.length;
  }
}

void append_utf8(std::string& text, char32_t c) {
  TAP_CHECK(is_character(c), "encode_utf8: 0x", hex(c), " is not a Unicode character");
  if (c < 0x80) {
    text += static_cast<char>(c);
    return;
  }
  const int continuation = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  text += static_cast<char>((0xF00u >> continuation & 0xFFu) | c >> (6 * continuation));
  for (int i = continuation - 1; i >= 0; --i) text += static_cast<char>(0x80u | (c >> (6 * i) & 0x3Fu));
}

// "U+2603 '☃'"
std::string display(char32_t c) {
  std::string text = "U+" + hex(c, true, 4);
  if (is_control(c)) return text;
  text += " '";
  append_utf8(text, c);
  return text + "'";
}

void check_id(std::int32_t id, std::size_t position, std::int64_t vocabulary) {
  TAP_CHECK(id >= 0 && id < vocabulary, "decode: token ", position, " is ", id, ", but ids lie in [0, ", vocabulary,
            ")");
}

constexpr std::string_view kCharPrefix = "char:";
constexpr std::string_view kEscape = "\\u{";

// Undoes the escapes of CharTokenizer::description().
std::string unescape(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t begin = text.find(kEscape);
    result += text.substr(0, begin);
    if (begin == text.npos) break;
    text.remove_prefix(begin + kEscape.size());
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    const auto digits = static_cast<std::size_t>(end - text.data());
    TAP_CHECK(error == std::errc() && digits < text.size() && text[digits] == '}',
              "tokenizer: the description has a malformed escape");
    append_utf8(result, value);
    text.remove_prefix(digits + 1);
  }
  return result;
}

}  // namespace

CharTokenizer::CharTokenizer(std::string_view utf8_text) {
  TAP_CHECK(!utf8_text.empty(), "char tokenizer: the text is empty, so there are no characters to number");
  std::vector<bool> seen(kLastCodePoint + 1);
  for_each_character(utf8_text, "char tokenizer", [&](char32_t c, std::size_t) { seen[c] = true; });
  for (char32_t c = 0; c <= kLastCodePoint; ++c) {
    if (!seen[c]) continue;
    ids_.emplace(c, static_cast<std::int32_t>(characters_.size()));
    characters_ += c;
  }
}

std::vector<std::int32_t> CharTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for_each_character(text, "encode", [&](char32_t c, std::size_t offset) {
    const auto found = ids_.find(c);
    TAP_CHECK(found != ids_.end(), "encode: character ", ids.size(), " (at byte ", offset, ") is ", display(c),
              ", which is not among the ", vocabulary(), " characters of the training text");
    ids.push_back(found->second);
  });
  return ids;
}

std::string CharTokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    check_id(ids[i], i, vocabulary());
    append_utf8(text, characters_[static_cast<std::size_t>(ids[i])]);
  }
  return text;
}

std::string CharTokenizer::description() const {
  std::string text(kCharPrefix);
  for (const char32_t c : characters_) {
    if (is_control(c) || c == U'\\')
      text.append(kEscape).append(hex(c)).append("}");
    else
      append_utf8(text, c);
  }
  return text;
}

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
  return ids;
}

std::string ByteTokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text(ids.size(), '\0');
  for (std::size_t i = 0; i < ids.size(); ++i) {
    check_id(ids[i], i, vocabulary());
    text[i] = static_cast<char>(ids[i]);
  }
  return text;
}

std::unique_ptr<Tokenizer> tokenizer_from_description(std::string_view description) {
  if (description == "byte") return std::make_unique<ByteTokenizer>();
  TAP_CHECK(description.starts_with(kCharPrefix), "tokenizer: \"", description.substr(0, 40),
            "\" is not a description; it begins with \"char:\" or is \"byte\"");
  auto tokenizer = std::make_unique<CharTokenizer>(unescape(description.substr(kCharPrefix.size())));
  TAP_CHECK(tokenizer->description() == description,
            "tokenizer: the characters of the description are not in order, repeated, or not escaped");
  return tokenizer;
}

std::u32string decode_utf8(std::string_view bytes, std::string_view what) {
  std::u32string text;
  for_each_character(bytes, what, [&](char32_t c, std::size_t) { text += c; });
  return text;
}

void check_utf8(std::string_view bytes, std::string_view what) {
  for_each_character(bytes, what, [](char32_t, std::size_t) {});
}

std::string encode_utf8(std::u32string_view text) {
  std::string bytes;
  for (const char32_t c : text) append_utf8(bytes, c);
  return bytes;
}

}  // namespace tapestry
