// Used by gradcheck: what kind of fault is it? A wrong backward pass usually leaves a pattern in the Jacobian, and a
// pattern is claimed only if it explains every entry: the gradient it predicts must equal the analytic one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/gradcheck.h"

namespace tapestry::detail {

// The derivative of all outputs by one input or parameter.
struct Jacobian {
  std::string name;
  Tensor point;                           // the value of the input, f64
  std::vector<double> analytic, numeric;  // [elements of all outputs, elements of the input]
};

struct Evidence {
  std::vector<Jacobian> inputs;
  std::vector<Tensor> outputs;  // f64
  // The numeric Jacobian of input `of` where input `moved` has another value.
  std::function<std::vector<double>(std::size_t of, std::size_t moved, const Tensor& value)> numeric_at;
};

struct Diagnosis {
  GradcheckDiagnosis kind = GradcheckDiagnosis::none;
  std::string text;
  explicit operator bool() const { return kind != GradcheckDiagnosis::none; }
};

// The pattern in the gradient of inputs[wrong]. None if nothing explains all of it.
Diagnosis diagnose(const Evidence& evidence, std::size_t wrong);

}  // namespace tapestry::detail
