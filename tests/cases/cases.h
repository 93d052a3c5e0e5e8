// The gradient-check catalogue: one row or more for every function of autograd/ops.h and every layer. A row buys all
// checks of run_case(). Used by tests/test_cases.cpp and by `tapestry gradcheck`:
//
//   for (const Case& c : all_cases()) {
//     const CaseResult result = run_case(c);
//     std::cout << result.line << '\n' << result.details;
//   }
//
// To add an op or a layer, add rows to the file of its family. The first word of a row's name is the function or class
// it covers; a test compares these words with the headers.
#pragma once

#include <vector>

#include "autograd/gradcheck_case.h"

namespace tapestry {

using Case = GradcheckCase;
using CaseResult = GradcheckCaseResult;

std::vector<Case> all_cases();

}  // namespace tapestry
