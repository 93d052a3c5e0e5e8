// Shared by the tests of optimizers: small sets of parameters, and gradients as backward would leave them.
#pragma once

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "core/random.h"
#include "optim/optimizers.h"

namespace tapestry::testing {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline void set_grad(Parameter& p, const Tensor& gradient) {
  p.zero_grad();
  const Grad grad(&p.state()->grad);
  REQUIRE_FALSE(grad.claim());
  grad.tensor().copy_from(gradient);
}
inline void set_grad(Parameter& p, double value) { set_grad(p, full(p.shape(), value)); }

// All parameters in one group, whatever their rank.
inline std::vector<ParameterGroup> one_group(std::vector<Parameter>& list) {
  ParameterGroup group;
  for (Parameter& p : list) group.parameters.push_back({text_of("p", group.parameters.size()), &p});
  return {group};
}

inline std::vector<Parameter> make_parameters(const std::vector<Shape>& shapes, DType dtype = DType::f32) {
  Rng rng(7);
  std::vector<Parameter> list;
  for (const Shape& shape : shapes) {
    Tensor value = empty(shape, dtype);
    fill_normal(value, 0, 1, rng.next());
    list.emplace_back(value);
  }
  return list;
}

inline std::vector<Parameter> filled(std::initializer_list<double> values, DType dtype = DType::f32) {
  std::vector<Parameter> list;
  for (const double value : values) list.emplace_back(full({1}, value, dtype));
  return list;
}

inline void random_grads(std::vector<Parameter>& list, std::uint64_t seed) {
  Rng rng(seed);
  for (Parameter& p : list) {
    Tensor gradient = empty_like(p.value());
    fill_normal(gradient, 0, 1, rng.next());
    set_grad(p, gradient);
  }
}

inline std::vector<double> values_of(const std::vector<Parameter>& list) {
  std::vector<double> all;
  for (const Parameter& p : list)
    for (std::int64_t i = 0; i < p.numel(); ++i) all.push_back(p.value().at(i));
  return all;
}

}  // namespace tapestry::testing
