// The command line of a gradient-check suite, and the run that it shares with `tapestry gradcheck`.
#include "autograd/gradcheck_main.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <set>
#include <string_view>

namespace tapestry {
namespace {

std::vector<std::function<GradcheckCase()>>& registry() {
  static std::vector<std::function<GradcheckCase()>> rows;
  return rows;
}

void print(std::FILE* out, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
}

std::string number(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string shapes_of(const GradcheckCase& c) {
  std::string text;
  for (const Tensor& t : c.inputs) text += text_of(text.empty() ? "" : ", ", t.shape());
  return text;
}

// The values of the inputs where these are few.
std::string values_of(const GradcheckCase& c) {
  constexpr std::int64_t kMany = 8;
  std::int64_t elements = 0;
  for (const Tensor& t : c.inputs) elements += t.numel();
  if (elements == 0 || elements > kMany) return {};
  std::string text = ":";
  for (std::size_t k = 0; k < c.inputs.size(); ++k) {
    text += k ? " |" : "";
    for (std::int64_t i = 0; i < c.inputs[k].numel(); ++i) text += number(" %.17g", c.inputs[k].at(i));
  }
  return text;
}

std::string reproducer(const GradcheckCase& c, const std::string& command) {
  std::string text =
      text_of("  reproduce: ", command, " --filter ", quoted(c.name), " --seed ", c.gradcheck.seed, "\n");
  if (c.inputs.empty()) return text;
  const GradcheckCase small = shrink(c);
  text += text_of("  inputs: ", shapes_of(c));
  if (shapes_of(small) != shapes_of(c)) text += text_of("; still wrong with ", shapes_of(small));
  return text + values_of(small) + "\n";
}

std::vector<GradcheckCase> choose(const std::vector<GradcheckCase>& all, const std::string& filter) {
  std::vector<GradcheckCase> chosen;
  for (const GradcheckCase& c : all)
    if (c.name.find(filter) != std::string::npos) chosen.push_back(c);
  return chosen;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  TAP_CHECK(file.good(), "gradcheck: cannot write ", path);
}

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// "3 of 52 ops and 0 of 19 layers checked"
std::string coverage(const std::vector<GradcheckCase>& all, const std::vector<GradcheckSuiteRow>& run,
                     const GradcheckSuiteOptions& options) {
  std::set<std::string> known[2]{options.ops, options.layers}, checked[2];
  for (const GradcheckCase& c : all) known[c.module != nullptr].insert(c.covers());
  for (const GradcheckSuiteRow& r : run)
    if (r.row->skip.empty()) checked[r.row->module != nullptr].insert(r.row->covers());
  return text_of(checked[0].size(), " of ", known[0].size(), " ops and ", checked[1].size(), " of ", known[1].size(),
                 " layers checked",
                 run.size() < all.size() ? text_of("; --filter leaves out ", all.size() - run.size(), " rows") : "");
}

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
  std::int64_t kinks = 0;
  double worst = 0, seconds = 0;
};

Counts count(const std::vector<GradcheckSuiteRow>& rows) {
  Counts c;
  for (const GradcheckSuiteRow& r : rows) {
    ++(!r.row->skip.empty() ? c.skipped : r.result.passed ? c.passed : c.failed);
    c.worst = std::max(c.worst, r.result.gradient_error);
    c.seconds += r.result.seconds;
    c.kinks += r.result.report.kinks;
  }
  return c;
}

// What is worth knowing at the end: reasons of what was left out, failures once more, and the counts.
std::string footer(const std::vector<GradcheckCase>& all, const GradcheckSuiteResult& result,
                   const GradcheckSuiteOptions& options) {
  const Counts c = count(result.rows);
  std::string text;
  for (const GradcheckSuiteRow& r : result.rows)
    if (!r.row->skip.empty()) text += text_of("skipped: ", r.row->name, ": ", r.row->skip, "\n");
  for (const GradcheckSuiteRow& r : result.rows)
    if (!r.row->skip_low.empty()) text += text_of("not in bf16 and f16: ", r.row->name, ": ", r.row->skip_low, "\n");
  for (const GradcheckSuiteRow& r : result.rows)
    if (r.row->skip.empty() && !r.result.passed) text += text_of("failed: ", r.row->name, "\n");
  if (!result.uncovered.empty())
    text += text_of("not covered: no row is named after ", joined(result.uncovered), "; add one for each\n");
  return text + text_of("gradcheck: ", c.passed, " passed, ", c.failed, " failed, ", c.skipped, " skipped; ",
                        coverage(all, result.rows, options), "; worst gradient error ", number("%.1e", c.worst), "; ",
                        c.kinks, " kinks; ", number("%.1f", c.seconds), " s\n");
}

std::optional<GradcheckSuiteOptions> parse(int argc, const char* const* argv) {
  GradcheckSuiteOptions options;
  options.command = argc > 0 ? argv[0] : "gradcheck";
  for (int k = 1; k < argc; ++k) {
    std::string name = argv[k], value;
    if (name == "--list") {
      options.list = true;
      continue;
    }
    if (name == "--help" || name == "-h") return {};
    const std::size_t equals = name.find('=');
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const bool known = name == "--filter" || name == "--seed" || name == "--json" || name == "--junit";
    TAP_CHECK(known, "gradcheck: option ", name, " is unknown; see --help");
    if (equals == std::string::npos) {
      TAP_CHECK(k + 1 < argc, "gradcheck: ", name, " needs a value");
      value = argv[++k];
    }
    if (name == "--filter") options.filter = value;
    if (name == "--json") options.json = value;
    if (name == "--junit") options.junit = value;
    if (name == "--seed") {
      std::uint64_t seed = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seed);
      TAP_CHECK(error == std::errc() && end == value.data() + value.size(), "gradcheck: --seed must be a number, not ",
                value);
      options.seed = seed;
    }
  }
  return options;
}

}  // namespace

std::vector<GradcheckCase> registered_gradchecks() {
  std::vector<GradcheckCase> rows;
  for (const auto& make : registry()) rows.push_back(make());
  return rows;
}

bool register_gradcheck(std::function<GradcheckCase()> make) {
  registry().push_back(std::move(make));
  return true;
}

std::set<std::string> uncovered(const std::set<std::string>& required, const std::vector<GradcheckCase>& rows) {
  std::set<std::string> result = required;
  for (const GradcheckCase& c : rows) result.erase(c.covers());
  return result;
}

int run_gradcheck_suite(const std::vector<GradcheckCase>& all, const GradcheckSuiteOptions& options) {
  std::vector<GradcheckCase> chosen = choose(all, options.filter);
  TAP_CHECK(!chosen.empty(), "gradcheck: --filter ", quoted(options.filter), " matches no row; --list shows them");
  if (options.list) {
    for (const GradcheckCase& c : chosen) print(options.out, c.name + "\n");
    return 0;
  }
  GradcheckSuiteResult suite;
  for (GradcheckCase& c : chosen) {
    if (options.seed) reseed(c, *options.seed);
    GradcheckSuiteRow& row = suite.rows.emplace_back(GradcheckSuiteRow{&c, {}, {}});
    if (!c.skip.empty()) {
      print(options.out, text_of("skip  ", c.name, ": ", c.skip, "\n"));
      continue;
    }
    row.result = run_case(c);
    print(options.out, row.result.line + "\n" + row.result.details);
    if (row.result.passed) continue;
    row.reproducer = reproducer(c, options.command);
    print(options.out, row.reproducer);
  }
  if (options.filter.empty()) {
    suite.uncovered = uncovered(options.ops, all);
    suite.uncovered.merge(uncovered(options.layers, all));
  }
  print(options.out, footer(all, suite, options));
  if (!options.json.empty()) write_file(options.json, gradcheck_json(suite));
  if (!options.junit.empty()) write_file(options.junit, gradcheck_junit(suite));
  return count(suite.rows).failed == 0 && suite.uncovered.empty() ? 0 : 1;
}

int gradcheck_main(int argc, const char* const* argv) {
  int code = 2;
  try {
    const std::optional<GradcheckSuiteOptions> options = parse(argc, argv);
    if (!options) {
      print(stdout,
            text_of("usage: ", argc > 0 ? argv[0] : "gradcheck",
                    " [--filter TEXT] [--list] [--seed N] [--json FILE] [--junit FILE]\n"
                    "Checks the gradient of every registered op and layer against finite differences in double.\n"));
      return 0;
    }
    const std::vector<GradcheckCase> rows = registered_gradchecks();
    if (!choose(rows, options->filter).empty()) code = 1;
    return run_gradcheck_suite(rows, *options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return code;
  }
}

}  // namespace tapestry
