// Command-line handling on top of CLI11: '-' and '_' are alike, a config file counts as options that come first, what
// is unknown gets a suggestion, and every mistake is a UsageError.
#pragma once

#include <CLI/App.hpp>
#include <map>
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

// Parses `args` into the variables bound to app's options; later options win. If app has the option --config, the
// file's lines `key = value` ('#' starts a comment) count as options before all others. Returns false when help was
// asked for and printed.
bool parse(CLI::App& app, const Arguments& args);

// What every option was set to or left at, by name without dashes; parse() takes it back as `--name=value`.
std::map<std::string, std::string> option_values(const CLI::App& app);

// The candidate closest to `word` if it is close enough to be meant, else "".
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);
// " (did you mean X?)" or "".
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates);

// "90", "90s", "2m", "1.5h" -> seconds; throws UsageError naming the option.
double parse_duration(const std::string& option, const std::string& text);

}  // namespace tapestry::command
