// A gradient-check suite of your own. Register rows anywhere in a program and hand over main:
//
//   TAPESTRY_GRADCHECK("softsign [4, 3]", softsign, Shape{4, 3})
//   TAPESTRY_GRADCHECK("Gate", Gate(8), Shape{5, 8})
//   int main(int argc, char** argv) { return tapestry::gradcheck_main(argc, argv); }
//
// Then `./suite --filter Gate --seed 3` works as `tapestry gradcheck --filter layernorm` does. Options:
//   --filter TEXT  only rows whose name contains TEXT        --json FILE   results for machines
//   --seed N       other random inputs and directions        --junit FILE  results for CI
//   --list         show the rows without running them        --help
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autograd/gradcheck_case.h"

namespace tapestry {

struct GradcheckSuiteOptions {
  std::string filter;
  bool list = false;
  std::optional<std::uint64_t> seed;  // none: what each row says
  std::string json, junit;            // files to write; empty: none
  std::string command = "gradcheck";  // shown where a failure can be repeated
  std::set<std::string> ops, layers;  // names that must have a row; not asked for under a filter
  std::FILE* out = stdout;
};

struct GradcheckSuiteRow {
  const GradcheckCase* row;
  GradcheckCaseResult result;
  std::string reproducer;  // of a failure: command, seed, the smallest inputs that still fail
};

struct GradcheckSuiteResult {
  std::vector<GradcheckSuiteRow> rows;
  std::set<std::string> uncovered;  // of those required
};

// Which of these names no row covers; a row covers the first word of its name.
std::set<std::string> uncovered(const std::set<std::string>& required, const std::vector<GradcheckCase>& rows);

// Runs the chosen rows, prints a line for each and at the end the counts, and writes the files. Returns 0 if every row
// passed and all that is required has a row, else 1. Throws if no row is chosen.
int run_gradcheck_suite(const std::vector<GradcheckCase>& rows, const GradcheckSuiteOptions& options);

// What the files hold.
std::string gradcheck_json(const GradcheckSuiteResult& result);
std::string gradcheck_junit(const GradcheckSuiteResult& result);

// Rows registered by TAPESTRY_GRADCHECK, in order within a file. They are made when asked for, not before main.
std::vector<GradcheckCase> registered_gradchecks();
bool register_gradcheck(std::function<GradcheckCase()> make);

// Runs what is registered. 0: everything passed, 1: something failed, 2: the call was wrong.
int gradcheck_main(int argc, const char* const* argv);

}  // namespace tapestry

#define TAPESTRY_GRADCHECK_NAME_2(line) tapestry_gradcheck_##line
#define TAPESTRY_GRADCHECK_NAME(line) TAPESTRY_GRADCHECK_NAME_2(line)
// name, then a function or Module, then a Shape or Tensor for each input: the arguments of gradcheck_case().
#define TAPESTRY_GRADCHECK(...)                                             \
  [[maybe_unused]] static const bool TAPESTRY_GRADCHECK_NAME(__COUNTER__) = \
      ::tapestry::register_gradcheck([] { return ::tapestry::gradcheck_case(__VA_ARGS__); });
