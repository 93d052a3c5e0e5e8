// The gradient-check catalogue: one row or more for every function of autograd/ops.h and every layer. A row buys all
// checks of run_case(). Used by tests/test_cases.cpp and by `tapestry gradcheck`:
//
//   for (const Case& c : all_cases(seed)) {
//     const CaseResult result = run_case(c);
//     std::cout << result.line << '\n' << result.details;
//   }
//
// To add an op or a layer, add rows to the file of its family. The first word of a row's name is the function or class
// it covers; a test compares these words with the headers.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "autograd/gradcheck_case.h"

namespace tapestry {

using Case = GradcheckCase;
using CaseResult = GradcheckCaseResult;

// Random inputs, parameters, ids, masks and directions are those of `seed`; values chosen by hand stay.
std::vector<Case> all_cases(std::uint64_t seed = 0);

// What must have a row: the functions of autograd/ops.h and the Modules of layers/, read from the headers by the build.
struct Menu {
  std::set<std::string> ops, layers;
  std::set<std::string> all() const {
    std::set<std::string> names = ops;
    names.insert(layers.begin(), layers.end());
    return names;
  }
};
const Menu& menu();

}  // namespace tapestry
