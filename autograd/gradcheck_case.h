// A row of a gradient-check suite: a function or layer with inputs. run_case() applies every check there is to it, not
// only gradcheck itself. gradcheck_main.h makes a program of many rows.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/gradcheck.h"

namespace tapestry {

struct GradcheckCase {
  std::string name;                          // "softmax [3, 33]"
  std::vector<Tensor> inputs;                // f64, every one of them differentiable
  GradcheckFunction function;                // captures whatever is not differentiable
  std::shared_ptr<Module> module = nullptr;  // of a layer: `function` uses it, and its parameters are checked too
  GradcheckOptions gradcheck = {.full_jacobian_limit = 10'000, .probes = 3, .max_kink_share = 0};
  double f32_tolerance = 1e-5;  // between f32 and f64 results, relative to the largest entry of the tensor
  bool low = false;             // also run in f16 and bf16: for a function that knows them
  // Between f16 or bf16 and f64 results, in units of the type's rounding error (2^-11, 2^-8) of the largest entry.
  double low_tolerance = 8;
  std::string skip_low;     // why a row that knows them is not run in f16 and bf16; it is shown
  bool same_input = true;   // inputs of equal shape may be one and the same Var
  std::vector<bool> drawn;  // for each input: it is normal noise of the seed and may be drawn anew
  std::string skip;         // why the row is not run; it is shown and counted

  std::string covers() const { return name.substr(0, name.find(' ')); }
};

struct GradcheckCaseResult {
  bool passed = false;
  std::string line;     // "ok    softmax [3]   gradient 2.1e-10, f32 8.0e-08, bf16 2.0e-03, f16 3.1e-04, 0 kinks, 4 ms"
  std::string details;  // what failed, several lines; empty if nothing did
  std::vector<std::string> failed;  // names of the checks, see run_case()
  double gradient_error = 0, f32_error = 0, bf16_error = 0, f16_error = 0;
  double seconds = 0;
  GradcheckReport report;  // of the first check
};

// The first of the checks of a row.
GradcheckReport gradcheck(const GradcheckCase& c);

// Runs all of them:
//   gradient      gradcheck: finite differences in f64 for every input and parameter; the first write onto gradient
//                 memory that holds NaN, the second one onto random values; two runs
//   memory        what the pool hands out holds NaN beforehand, and the results keep their bits
//   untracked     with one input a constant or one parameter frozen, the other gradients keep their bits
//   accumulation  where one gradient is begun by another use, it alone is added to, and the others keep their bits
//   same input    f(x, x): one Var passed as two inputs gets the sum of both gradients
//   f32           values and gradients agree with f64 within f32_tolerance, and what the last digit of the inputs moves
//   bf16, f16     with `low`, the same for 16-bit inputs, parameters and cotangent, against f64 from the same rounded
//                 values: within low_tolerance roundings, and eight times what the last digit of the inputs moves
//   determinism   two runs, and runs on 1, 2 and 3 threads, give the same bits in f32, f64 and bf16
GradcheckCaseResult run_case(const GradcheckCase& c);

// Input `index` of the given shape: f64, normal, a pure function of its arguments.
Tensor draw_input(const Shape& shape, std::uint64_t seed, std::uint64_t index);
// Uses `seed` for cotangents and directions, and draws the inputs anew that were drawn.
void reseed(GradcheckCase& c, std::uint64_t seed);
// The smallest row in which gradcheck finds the same fault: extents are halved while it does. Inputs that were drawn
// are drawn anew, of others the leading part is taken. What does not fit the function makes it throw and is not kept,
// so a function checks its shapes.
GradcheckCase shrink(const GradcheckCase& c);

// A row for a function or a Module (moved into the row). Each input is a Shape, drawn from the seed, or an f64 Tensor.
template <class F, class... Inputs>
GradcheckCase gradcheck_case(std::string name, F&& f, const Inputs&... inputs) {
  GradcheckCase c;
  c.name = std::move(name);
  auto add = [&]<class T>(const T& input) {
    c.drawn.push_back(std::same_as<T, Shape>);
    if constexpr (std::same_as<T, Shape>)
      c.inputs.push_back(draw_input(input, 0, c.inputs.size()));
    else
      c.inputs.push_back(input);
  };
  (add(inputs), ...);
  if constexpr (std::derived_from<std::remove_cvref_t<F>, Module>) {
    auto module = std::make_shared<std::remove_cvref_t<F>>(std::forward<F>(f));
    c.function = [m = module.get()](std::span<const Var> x) { return detail::call(*m, x); };
    c.module = std::move(module);
  } else {
    c.function = gradcheck_function(std::forward<F>(f));
  }
  return c;
}

}  // namespace tapestry
