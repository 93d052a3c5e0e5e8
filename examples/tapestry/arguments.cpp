#include "arguments.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <numeric>

namespace tapestry::command {

namespace {

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

void check_known(const std::string& name, const std::vector<std::string>& known, const std::string& what) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  throw UsageError(fmt::format("{} is unknown{}", what, suggestion(name, known)));
}

// "--batch-size=3" -> "--batch_size=3"; everything else unchanged.
std::string normalised(const std::string& arg) {
  if (arg.rfind("--", 0) != 0 || arg.size() == 2) return arg;
  const auto equals = arg.find('=');
  const std::string name = with_underscores(arg.substr(2, equals == std::string::npos ? equals : equals - 2));
  return "--" + name + (equals == std::string::npos ? "" : arg.substr(equals));
}

Arguments read_config(const std::string& path, const std::vector<std::string>& known) {
  std::ifstream file(path);
  if (!file) throw UsageError(fmt::format("config file '{}' cannot be read", path));
  Arguments result;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const auto equals = line.find('=');
    if (equals == std::string::npos)
      throw UsageError(fmt::format("{}:{}: expected 'key = value', not '{}'", path, number, line));
    const std::string key = with_underscores(trimmed(line.substr(0, equals)));
    check_known(key, known, fmt::format("{}:{}: key '{}'", path, number, key));
    if (key == "config") throw UsageError(fmt::format("{}:{}: a config file cannot name another", path, number));
    std::string value = trimmed(line.substr(equals + 1));
    if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front())
      value = value.substr(1, value.size() - 2);
    result.push_back("--" + key + "=" + value);
  }
  return result;
}

std::string config_path(const Arguments& args) {
  std::string path;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i].rfind("--config=", 0) == 0)
      path = args[i].substr(9);
    else if (args[i] == "--config" && i + 1 < args.size())
      path = args[i + 1];
  }
  return path;
}

}  // namespace

struct Options::Impl {
  CLI::App app;
  std::string group = "Options";

  CLI::Option* configure(CLI::Option* option) {
    return option->group(group)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  const CLI::Option* find(const std::string& name) const { return app.get_option_no_throw("--" + name); }
  std::vector<const CLI::Option*> options() const {  // without --help
    std::vector<const CLI::Option*> result;
    for (const CLI::Option* option : app.get_options())
      if (option != app.get_help_ptr()) result.push_back(option);
    return result;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> result = {"help"};
    for (const CLI::Option* option : options()) result.push_back(option->get_lnames()[0]);
    return result;
  }
};

Options::Options(std::string command, std::string summary) : impl_(new Impl{CLI::App(summary, command)}) {}
Options::~Options() = default;

void Options::group(std::string heading) { impl_->group = std::move(heading); }

template <class T>
void Options::add(const std::string& name, T& value, const std::string& help) {
  impl_->configure(impl_->app.add_option("--" + name, value, help)->capture_default_str());
}
template void Options::add(const std::string&, std::string&, const std::string&);
template void Options::add(const std::string&, std::int64_t&, const std::string&);
template void Options::add(const std::string&, std::uint64_t&, const std::string&);
template void Options::add(const std::string&, int&, const std::string&);
template void Options::add(const std::string&, double&, const std::string&);
template void Options::add(const std::string&, bool&, const std::string&);

void Options::add_flag(const std::string& name, bool& value, const std::string& help) {
  impl_->configure(impl_->app.add_flag("--" + name, value, help));
}

bool Options::contains(const std::string& name) const { return impl_->find(name) != nullptr; }
bool Options::given(const std::string& name) const { return contains(name) && impl_->find(name)->count() > 0; }

std::map<std::string, std::string> Options::values() const {
  std::map<std::string, std::string> result;
  for (const CLI::Option* option : impl_->options()) {
    const auto& given = option->results();
    result[option->get_lnames()[0]] = given.empty() ? option->get_default_str() : given.back();
  }
  return result;
}

bool Options::parse(const Arguments& args) {
  const std::vector<std::string> known = impl_->names();
  Arguments all;
  for (const std::string& arg : args) {
    all.push_back(normalised(arg));
    if (arg.rfind("--", 0) != 0 || arg.size() == 2) continue;
    check_known(all.back().substr(2, all.back().find('=') - 2), known,
                fmt::format("option {}", arg.substr(0, arg.find('='))));
  }
  if (const std::string path = config_path(all); !path.empty()) {
    const Arguments config = read_config(path, known);
    all.insert(all.begin(), config.begin(), config.end());
  }
  std::reverse(all.begin(), all.end());  // as CLI11 wants them
  try {
    impl_->app.parse(all);
  } catch (const CLI::CallForHelp&) {
    std::cout << impl_->app.help();
    return false;
  } catch (const CLI::ParseError& e) {
    std::string text = e.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    throw UsageError(text);
  }
  return true;
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
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
