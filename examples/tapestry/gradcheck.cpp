// tapestry gradcheck: the gradient-check catalogue of tests/cases, one line a row.
#include <fmt/format.h>

#include <cstdio>

#include "commands.h"
#include "tests/cases/cases.h"

namespace tapestry::command {

int gradcheck(const Arguments& args) {
  std::string filter;
  bool list = false;
  Options parser("tapestry gradcheck",
                 "Check the gradient of every op and layer against finite differences in double.");
  parser.add("filter", filter, "only rows whose name contains this text");
  parser.add_flag("list", list, "show the rows without running them");
  if (!parser.parse(args)) return 0;

  std::vector<Case> chosen;
  std::vector<std::string> covered;
  for (Case& c : all_cases()) {
    if (covered.empty() || covered.back() != c.covers()) covered.push_back(c.covers());
    if (c.name.find(filter) != std::string::npos) chosen.push_back(std::move(c));
  }
  if (chosen.empty())
    throw UsageError(
        fmt::format("--filter '{}' matches no row{}; --list shows them", filter, suggestion(filter, covered)));

  int failed = 0;
  for (const Case& c : chosen) {
    if (list) {
      fmt::print("{}\n", c.name);
      continue;
    }
    const CaseResult result = run_case(c);
    fmt::print("{}\n{}", result.line, result.details);
    std::fflush(stdout);
    failed += !result.passed;
  }
  const int count = static_cast<int>(chosen.size());
  if (!list) fmt::print("gradcheck: {} passed, {} failed\n", count - failed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace tapestry::command
