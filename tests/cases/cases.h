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

#include <memory>
#include <string>
#include <vector>

#include "autograd/gradcheck.h"

namespace tapestry {

struct Case {
  std::string name;                          // "softmax [3, 33]"
  std::vector<Tensor> inputs;                // f64, every one of them differentiable
  GradcheckFunction function;                // captures whatever is not differentiable
  std::shared_ptr<Module> module = nullptr;  // of a layer: `function` uses it, and its parameters are checked too
  GradcheckOptions gradcheck = {.full_jacobian_limit = 10'000, .probes = 3, .max_kink_share = 0};
  double f32_tolerance = 1e-5;  // between f32 and f64 results, relative to the largest entry of the tensor
  bool same_input = true;       // inputs of equal shape may be one and the same Var

  std::string covers() const { return name.substr(0, name.find(' ')); }
};

struct CaseResult {
  bool passed = false;
  std::string line;     // "ok    softmax [3, 33]   gradient 2.1e-10, f32 8.0e-08, 0 kinks, 4 ms"
  std::string details;  // what failed, several lines; empty if nothing did
  double gradient_error = 0, f32_error = 0;
};

std::vector<Case> all_cases();

// Runs the checks of a row:
//   gradient      gradcheck: finite differences in f64 for every input and parameter; the first write onto gradient
//                 memory that holds NaN, the second one onto random values; two runs
//   memory        what the pool hands out holds NaN beforehand, and the results keep their bits
//   untracked     with one input a constant, the gradients of the others keep their bits
//   same input    f(x, x): one Var passed as two inputs gets the sum of both gradients
//   f32           values and gradients agree with f64 within f32_tolerance
//   determinism   two runs, and runs on 1, 2 and 3 threads, give the same bits in f32 and f64
CaseResult run_case(const Case& c);

}  // namespace tapestry
