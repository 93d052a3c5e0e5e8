// UTF-8, the tokenizers and their descriptions.
#include "core/data/tokenizer.h"
#include "tests/error_message.h"

#include <doctest/doctest.h>

#include <string>

using namespace tapestry;

TEST_CASE("UTF-8 round trip at every boundary of length") {
  const std::u32string text = {0,      'a',    0x7F,   0x80,    0x7FF,   0x800,   0xD7FF,
                               0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF};
  const std::string bytes = encode_utf8(text);
  CHECK(bytes.size() == 3 * 1 + 2 * 2 + 5 * 3 + 3 * 4);
  CHECK(decode_utf8(bytes, "test") == text);
  CHECK_NOTHROW(check_utf8(bytes, "test"));
  CHECK(encode_utf8(U"\u2603") == "\xE2\x98\x83");
  CHECK(decode_utf8("", "test").empty());
}

TEST_CASE("invalid UTF-8 is refused with the offset of its first byte") {
  const struct {
    std::string bytes, reason;
  } cases[] = {
      {"\x80", "a continuation byte"},
      {"\xBF", "a continuation byte"},
      {"\xC0\x80", "overlong"},
      {"\xC1\xBF", "overlong"},
      {"\xE0\x9F\xBF", "overlong"},
      {"\xF0\x8F\xBF\xBF", "overlong"},
      {"\xED\xA0\x80", "surrogate"},
      {"\xED\xBF\xBF", "surrogate"},
      {"\xF4\x90\x80\x80", "above U+10FFFF"},
      {"\xF5\x80\x80\x80", "above U+10FFFF"},
      {"\xF8\x88\x80\x80\x80", "never uses"},
      {"\xFF\xFE", "never uses"},
      {"\xC3", "ends within"},
      {"\xE2\x98", "ends within"},
      {"\xF0\x9F\x98", "ends within"},
      {"\xC3(", "cut short"},
      {"\xE2\x98(", "cut short"},
      {"\xE2(\x98", "cut short"},
  };
  for (const auto& c : cases)
    for (const std::string& prefix : {std::string(), std::string("abc\xC3\xA9")}) {
      const std::string bytes = prefix + c.bytes;
      const std::string message = message_of([&] { decode_utf8(bytes, "some.txt"); });
      CAPTURE(message);
      CHECK(has(message, text_of("some.txt: invalid UTF-8 at byte ", prefix.size(), " (0x")));
      CHECK(has(message, c.reason));
      CHECK(message == message_of([&] { check_utf8(bytes, "some.txt"); }));
    }
  CHECK(has(message_of([] { decode_utf8("\xFF", "x"); }), "(0xFF)"));
}

TEST_CASE("encode_utf8 refuses what is no character") {
  for (const char32_t c : {char32_t{0xD800}, char32_t{0xDFFF}, char32_t{0x110000}, char32_t{0xFFFFFFFF}})
    CHECK(has(message_of([&] { encode_utf8(std::u32string(1, c)); }), "is not a Unicode character"));
}

TEST_CASE("a char tokenizer numbers the characters of its text in code point order") {
  const CharTokenizer t("b\u2603a\nba\U0001F600");
  CHECK(t.vocabulary() == 5);
  CHECK(t.encode("\nab\u2603\U0001F600") == std::vector<std::int32_t>{0, 1, 2, 3, 4});
  CHECK(t.decode({4, 0, 3, 2, 1}) == "\U0001F600\n\u2603ba");
  CHECK(t.encode("").empty());
  CHECK(t.decode({}).empty());
}

TEST_CASE("an unknown character is named with its position") {
  const CharTokenizer t("abc\u2603");
  CHECK(has(message_of([&] { t.encode("a\u2603b\u00E9"); }),
            "encode: character 3 (at byte 5) is U+00E9 '\u00E9', which is not among the 4 characters"));
  const std::string control = message_of([&] { t.encode("\n"); });
  CHECK(has(control, "is U+000A,"));
  CHECK(has(message_of([&] { t.encode("a\xFF"); }), "encode: invalid UTF-8 at byte 1"));
}

TEST_CASE("ids outside of the vocabulary are refused") {
  const CharTokenizer chars("ab");
  CHECK(has(message_of([&] { chars.decode({0, 2}); }), "decode: token 1 is 2, but ids lie in [0, 2)"));
  CHECK(has(message_of([&] { chars.decode({-1}); }), "decode: token 0 is -1"));
  const ByteTokenizer bytes;
  CHECK(has(message_of([&] { bytes.decode({255, 256}); }), "decode: token 1 is 256, but ids lie in [0, 256)"));
}

TEST_CASE("a byte tokenizer expresses any bytes") {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const ByteTokenizer t;
  CHECK(t.vocabulary() == 256);
  CHECK(t.encode(all)[200] == 200);
  CHECK(t.decode(t.encode(all)) == all);
  CHECK(tokenizer_from_description(t.description())->encode(all) == t.encode(all));
}

TEST_CASE("a description is one line and gives the same tokenizer") {
  for (const std::string& text :
       {std::string("a"), std::string("hello\r\n\tworld \\n \\u{a} {}\"'"), std::string("\0\x7f\x1b", 3),
        std::string("\u0085\u2028\u2029\u2603\U0010FFFF\uFEFF"), std::string("char:byte")}) {
    const CharTokenizer t(text);
    const std::string description = t.description();
    CAPTURE(description);
    CHECK(description.find_first_of(std::string("\n\r\0\x1b", 4)) == description.npos);
    const auto again = tokenizer_from_description(description);
    CHECK(again->vocabulary() == t.vocabulary());
    CHECK(again->encode(text) == t.encode(text));
    CHECK(again->description() == description);
  }
  CHECK(CharTokenizer("b\na\\").description() == "char:\\u{a}\\u{5c}ab");
}

TEST_CASE("what is no description is refused") {
  for (const std::string& junk : {std::string(),
                                  std::string("bytes"),
                                  std::string("bpe:x"),
                                  std::string("char"),
                                  std::string("char:"),
                                  std::string("char:ba"),
                                  std::string("char:aa"),
                                  std::string("char:a\n"),
                                  std::string("char:a\\"),
                                  std::string("char:\\u{a"),
                                  std::string("char:\\u{}"),
                                  std::string("char:\\u{zz}"),
                                  std::string("char:\\u{0a}"),
                                  std::string("char:\\u{61}"),
                                  std::string("char:\\u{110000}"),
                                  std::string("char:\\u{d800}"),
                                  std::string("char:\\u{123456789abcdef}"),
                                  std::string("char:\\u{-1}"),
                                  std::string("char:\xFF"),
                                  std::string("char:ab\\u{a}")}) {
    CAPTURE(junk);
    CHECK_THROWS_AS(tokenizer_from_description(junk), Error);
  }
  CHECK(has(message_of([] { tokenizer_from_description("bpe:x"); }), "\"bpe:x\" is not a description"));
  CHECK_THROWS_AS(CharTokenizer(""), Error);
}
