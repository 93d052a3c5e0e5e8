#include "arguments.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>
#include <type_traits>

#include "core/io/atomic_file.h"

namespace tapestry::command {

namespace {

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// "--batch-size=3" -> "batch_size"
std::string option_name(const std::string& arg) {
  std::string name = arg.substr(2, arg.find('=') - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool is_option(const std::string& arg) { return arg.size() > 2 && arg.rfind("--", 0) == 0; }

// The one form that CLI11 gets to see. It drops empty values, so a second '=' is a part of every value.
std::string spelled_out(const std::string& name, const std::string& value) { return "--" + name + "==" + value; }

void assign(const std::string&, const std::string& text, std::string& value) { value = text; }

void assign(const std::string& option, const std::string& text, bool& value) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower != "true" && lower != "1" && lower != "false" && lower != "0")
    throw UsageError(fmt::format("--{} must be true or false, not '{}'", option, text));
  value = lower == "true" || lower == "1";
}

template <class Number>
void assign(const std::string& option, const std::string& text, Number& value) {
  Number result{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  if (error == std::errc::result_out_of_range)
    throw UsageError(fmt::format("--{}: {} is too large or too small a number", option, text));
  if (error != std::errc() || end != text.data() + text.size())
    throw UsageError(fmt::format("--{} must be a {}, not '{}'", option,
                                 std::is_floating_point_v<Number> ? "number"
                                 : std::is_signed_v<Number>       ? "whole number"
                                                                  : "whole number of 0 or more",
                                 text));
  value = result;
}

template <class T>
const char* type_name(const T&) {
  return std::is_same_v<T, std::string> ? "TEXT" : std::is_same_v<T, bool> ? "true|false" : "NUMBER";
}

template <class T>
void enforce(const Rule& rule, const std::string& option, const T& value) {
  bool holds = true;
  if constexpr (std::is_same_v<T, std::string>)
    holds = rule.words.empty() || std::find(rule.words.begin(), rule.words.end(), value) != rule.words.end();
  else
    holds = !rule.number || rule.number(static_cast<double>(value));
  if (!holds) throw UsageError(fmt::format("--{} must be {}, not {}", option, rule.text, value));
}

// The value of a line `key = value  # comment`, with or without quotes around it.
std::string config_value(const std::string& text, const std::string& place) {
  const std::string value = trimmed(text);
  if (value.empty() || (value[0] != '"' && value[0] != '\'')) return trimmed(value.substr(0, value.find('#')));
  const auto close = value.find(value[0], 1);
  if (close == std::string::npos) throw UsageError(fmt::format("{}: the quote {} is not closed", place, value[0]));
  const std::string rest = trimmed(value.substr(close + 1));
  if (!rest.empty() && rest[0] != '#') throw UsageError(fmt::format("{}: '{}' follows the value", place, rest));
  return value.substr(1, close - 1);
}

Arguments read_config(const std::string& path, const std::vector<std::string>& known) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& e) {
    throw UsageError(fmt::format("--config: {}", e.what()));
  }
  std::istringstream file(text);
  Arguments result;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line = trimmed(line);
    if (line.empty() || line[0] == '#') continue;
    const std::string place = fmt::format("{}:{}", path, number);
    const auto equals = line.find('=');
    if (equals == std::string::npos)
      throw UsageError(fmt::format("{}: a line must be 'key = value', not '{}'", place, line));
    const std::string key = option_name("--" + trimmed(line.substr(0, equals)));
    if (key == "config" || key == "help")
      throw UsageError(fmt::format("{}: key '{}' belongs on the command line", place, key));
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw UsageError(fmt::format("{}: key '{}' is unknown{}", place, key, suggestion(key, known)));
    result.push_back(spelled_out(key, config_value(line.substr(equals + 1), place)));
  }
  return result;
}

}  // namespace

Rule at_least(std::int64_t low) {
  return {fmt::format("{} or more", low),
          [low](double value) { return value >= static_cast<double>(low) && std::isfinite(value); }};
}
Rule from_to_below(double low, double high) {
  return {fmt::format("at least {} and below {}", low, high),
          [low, high](double value) { return value >= low && value < high; }};
}
Rule one_of(std::vector<std::string> words) {
  return {fmt::format("{}", fmt::join(words, " or ")), {}, std::move(words)};
}

struct Options::Impl {
  struct Bound {
    CLI::Option* option;
    std::function<std::string()> text;
    std::function<void()> enforce_rule;
    bool flag;
  };
  CLI::App app;
  std::string group = "Options";
  bool reads_config = false;
  std::vector<std::string> names = {"help"};
  std::map<std::string, Bound> bound = {};

  template <class T>
  void bind(const std::string& name, T& value, const std::string& help, const Rule& rule, bool flag) {
    const CLI::callback_t set = [&value, name](const CLI::results_t& given) {
      assign(name, given.back().substr(1), value);
      return true;
    };
    const auto text = [&value] { return fmt::format("{}", value); };
    CLI::Option* option = app.add_option("--" + name, set, help);
    option->group(group)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    option->type_name(flag ? "" : type_name(value))->default_str(flag ? "" : text());
    names.push_back(name);
    bound[name] = {option, text, [&value, name, rule] { enforce(rule, name, value); }, flag};
  }

  bool names_option(const std::string& arg) const {
    return is_option(arg) && std::find(names.begin(), names.end(), option_name(arg)) != names.end();
  }

  Arguments spell_out(const Arguments& args) const {
    Arguments result;
    for (std::size_t i = 0; i < args.size(); ++i) {
      const std::string& arg = args[i];
      if (arg == "-h") return {"--help"};
      if (!is_option(arg))
        throw UsageError(fmt::format("'{}' is not expected here; options are written --name value", arg));
      const std::string name = option_name(arg), shown = arg.substr(0, arg.find('='));
      if (!names_option(arg)) {
        const std::string close = nearest(name, names);
        throw UsageError(fmt::format("option {} is unknown{}", shown,
                                     close.empty() ? "; " + app.get_name() + " --help lists them all"
                                                   : fmt::format(" (did you mean --{}?)", close)));
      }
      if (name == "help") return {"--help"};
      if (const auto equals = arg.find('='); equals != std::string::npos)
        result.push_back(spelled_out(name, arg.substr(equals + 1)));
      else if (bound.at(name).flag)
        result.push_back(spelled_out(name, "true"));
      else if (i + 1 < args.size() && !names_option(args[i + 1]))
        result.push_back(spelled_out(name, args[++i]));
      else
        throw UsageError(fmt::format("option {} needs a value", shown));
    }
    return result;
  }
};

Options::Options(std::string command, std::string summary) : impl_(new Impl{CLI::App(summary, command)}) {
  impl_->app.set_help_flag("-h,--help", "show this text");
  impl_->app.get_formatter()->column_width(38);
}
Options::~Options() = default;

void Options::group(std::string heading) { impl_->group = std::move(heading); }

void Options::footer(std::string text) { impl_->app.footer(std::move(text)); }

template <class T>
void Options::add(const std::string& name, T& value, const std::string& help, const Rule& rule) {
  impl_->bind(name, value, help, rule, false);
}
template void Options::add(const std::string&, std::string&, const std::string&, const Rule&);
template void Options::add(const std::string&, std::int64_t&, const std::string&, const Rule&);
template void Options::add(const std::string&, std::uint64_t&, const std::string&, const Rule&);
template void Options::add(const std::string&, int&, const std::string&, const Rule&);
template void Options::add(const std::string&, double&, const std::string&, const Rule&);
template void Options::add(const std::string&, bool&, const std::string&, const Rule&);

void Options::add_flag(const std::string& name, bool& value, const std::string& help) {
  impl_->bind(name, value, help, {}, true);
}

void Options::add_config(std::string& path) {
  add("config", path, "file of lines 'key = value' with these option names");
  impl_->reads_config = true;
}

bool Options::contains(const std::string& name) const { return impl_->bound.count(name) > 0; }
bool Options::given(const std::string& name) const {
  return contains(name) && impl_->bound.at(name).option->count() > 0;
}

std::map<std::string, std::string> Options::values() const {
  std::map<std::string, std::string> result;
  for (const auto& [name, bound] : impl_->bound) result[name] = bound.text();
  return result;
}

bool Options::parse(const Arguments& args) {
  Arguments all = impl_->spell_out(args);
  const auto config = std::find_if(all.rbegin(), all.rend(), [](auto& arg) { return arg.rfind("--config==", 0) == 0; });
  if (impl_->reads_config && config != all.rend()) {
    const Arguments lines = read_config(config->substr(10), impl_->names);
    all.insert(all.begin(), lines.begin(), lines.end());
  }
  std::reverse(all.begin(), all.end());  // as CLI11 wants them
  try {
    impl_->app.parse(all);
  } catch (const CLI::CallForHelp&) {
    std::string help = impl_->app.help();
    for (std::size_t at; (at = help.find("\n\n\n")) != std::string::npos;) help.erase(at, 1);
    fmt::print("{}", help);
    return false;
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  }
  for (const auto& [name, option] : impl_->bound) option.enforce_rule();
  return true;
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, (word.size() + 1) / 2) + 1;
  for (const std::string& candidate : candidates) {
    std::vector<std::size_t> row(candidate.size() + 1);  // Levenshtein, one row at a time
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t replaced = diagonal + (word[i] != candidate[j]);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? "" : fmt::format(" (did you mean {}?)", best);
}

double parse_duration(const std::string& option, const std::string& text) {
  const auto complain = [&]() -> double {
    throw UsageError(fmt::format("--{}: '{}' is not a duration; write 90, 90s, 2m or 1.5h", option, text));
  };
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    return complain();
  }
  const std::string unit = text.substr(used);
  const double scale = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (scale == 0 || !std::isfinite(value) || value < 0) return complain();
  return value * scale;
}

}  // namespace tapestry::command
