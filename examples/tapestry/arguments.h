// Command-line handling on top of CLI11: '-' and '_' are alike, a config file counts as options that come first, what
// is unknown gets a suggestion, and every mistake is a UsageError. CLI11 itself stays in arguments.cpp: it is slow to
// compile.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tapestry::command {

// A mistake in the call itself: one line on stderr, exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Arguments = std::vector<std::string>;

// What the value of an option must be, in words for the error and as a test.
struct Rule {
  std::string text = {};
  std::function<bool(double)> number = {};  // of a number
  std::vector<std::string> words = {};      // of a text; empty: any
};
Rule at_least(std::int64_t low);              // and finite
Rule from_to_below(double low, double high);  // low <= value < high
Rule one_of(std::vector<std::string> words);

// The options of one subcommand. Names are written with underscores and without dashes.
class Options {
 public:
  Options(std::string command, std::string summary);
  ~Options();

  void group(std::string heading);  // of what is added from here on
  void footer(std::string text);    // below the options in the help
  // Binds `value`; what it holds now is the default. T: std::string, std::int64_t, std::uint64_t, int, double, bool.
  template <class T>
  void add(const std::string& name, T& value, const std::string& help, const Rule& rule = {});
  void add_flag(const std::string& name, bool& value, const std::string& help);
  // --config FILE: its lines `key = value` ('#' starts a comment) count as options before all others.
  void add_config(std::string& path);

  // Sets the bound variables; later options win. Throws for what a rule forbids. Returns false when help was asked for
  // and printed.
  bool parse(const Arguments& args);

  bool contains(const std::string& name) const;
  bool given(const std::string& name) const;  // by the last parse
  // What every option was set to or left at, in one spelling; parse() takes it back as `--name=value`.
  std::map<std::string, std::string> values() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The candidate closest to `word` if it is close enough to be meant, else "".
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);
// " (did you mean X?)" or "".
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates);

// "90", "90s", "2m", "1.5h" -> seconds; throws UsageError naming the option.
double parse_duration(const std::string& option, const std::string& text);

}  // namespace tapestry::command
