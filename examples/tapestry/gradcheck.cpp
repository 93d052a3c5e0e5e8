// tapestry gradcheck: the gradient-check catalogue of tests/cases, one line a row.
#include <fmt/format.h>

#include <algorithm>

#include "autograd/gradcheck_main.h"
#include "commands.h"
#include "tests/cases/cases.h"

namespace tapestry::command {

int gradcheck(const Arguments& args) {
  GradcheckSuiteOptions options;
  options.command = "tapestry gradcheck";
  std::uint64_t seed = 0;
  Options parser("tapestry gradcheck",
                 "Check the gradient of every op and layer against finite differences; one without a row fails.");
  parser.add("filter", options.filter, "only rows whose name contains this text");
  parser.add_flag("list", options.list, "show the rows without running them");
  parser.add("seed", seed, "of the random inputs, parameters, masks and directions");
  parser.add("json", options.json, "file to write the results to, for machines");
  parser.add("junit", options.junit, "file to write the results to, for CI");
  if (!parser.parse(args)) return 0;

  const std::vector<Case> all = all_cases(seed);
  options.ops = menu().ops;
  options.layers = menu().layers;
  std::vector<std::string> covered;
  for (const Case& c : all)
    if (covered.empty() || covered.back() != c.covers()) covered.push_back(c.covers());
  const std::string& filter = options.filter;
  if (std::none_of(all.begin(), all.end(), [&](const Case& c) { return c.name.find(filter) != std::string::npos; }))
    throw UsageError(
        fmt::format("--filter '{}' matches no row{}; --list shows them", filter, suggestion(filter, covered)));
  return run_gradcheck_suite(all, options);
}

}  // namespace tapestry::command
