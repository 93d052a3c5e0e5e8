// gradcheck: is the backward pass of a function the derivative of its forward pass? It compares gradients with central
// differences in double precision and, where they differ, says which entry of which input is wrong.
//
//   GradcheckReport report = gradcheck(gelu, {x});                                       // x: an f64 Tensor
//   gradcheck([](const Var& a, const Var& b) { return a * b; }, {a, b});
//   gradcheck(layer, {x});                                                                // and its parameters
//   gradcheck(model, [&](const Var& x) { return model.loss(x, targets); }, {x});
//   if (!report) std::cout << report.text();
//
// The function takes one Var for each input (or one std::span<const Var>) and returns a Var of any shape, a
// std::array or a std::vector of them. Whatever has no gradient (ids, masks, keys) is captured by the lambda.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/module.h"
#include "autograd/tape.h"

namespace tapestry {

struct GradcheckOptions {
  // An entry is right if it is within tolerance * max(|analytic|, |numeric|, largest entry of that input) plus the
  // error bar of its numeric value. 0: 1e-7, or 2e-2 for f32.
  double tolerance = 0;
  // x moves by step * max(1, |x|), and by twice that for the error bar. 0: the cube root of the machine epsilon.
  double step = 0;
  // Every entry of the Jacobian is compared up to this many (elements of the outputs times elements of all inputs and
  // parameters); above it, `probes` random cotangents, each along a random direction and four single elements.
  std::int64_t full_jacobian_limit = 20'000;
  int probes = 8;
  std::uint64_t seed = 0;  // of the random cotangents and directions
  // Entries where the one-sided slopes disagree (relu at 0) are not compared but counted. A larger share of them fails.
  double max_kink_share = 0.1;
  bool allow_f32 = false;  // differences of f32 values carry three digits at most; refused unless this is set
  std::vector<std::string> names = {};  // of the inputs, for the report; default "input 0", ...
};

enum class GradcheckFault {
  none,
  wrong_gradient,     // analytic and numeric value differ
  not_finite,         // a value or gradient is NaN or infinite
  not_deterministic,  // two runs on the same values differ
  wrong_write,        // backward does not assign on the first write, or does not add on a later one
  too_many_kinks,     // more than max_kink_share, or nothing left to compare
  not_visited,        // a Parameter is used that visit() of the module does not reach
  error,              // the function or its backward threw
};
std::string_view name_of(GradcheckFault fault);

// What kind of mistake a wrong gradient points to. Claimed only if it explains every entry of the Jacobian.
enum class GradcheckDiagnosis {
  none,
  zero_gradient,    // nothing arrives, from all outputs or from one: a branch was dropped
  sign_flipped,     // -1 times the right one
  constant_factor,  // 2, 1/2, n, 1/n, sqrt(n), ... times the right one
  missing_factor,   // lacks a factor that varies: another input, an output, a scale of each row
  wrong_power,      // each entry is the square, the root or the reciprocal of the right one
  wrong_input,      // it is the gradient of another input
  transposed,       // two axes are exchanged, or W stands where its transpose is due
  misplaced,        // reversed or shifted along an axis
  wrong_axis,       // expanded or summed along another axis
  missing_sum,      // of the outputs that share an element only one contributes
  missing_slice,    // part of the input gets no gradient
  missing_term,     // one term is absent, as the mean in LayerNorm or y * sum(dy * y) in softmax
  stale_value,      // the derivative at another value: a saved tensor was overwritten
  wrong_slice,      // wrong at one index of an axis only: the border
  wrong_region,     // wrong on one side of a value only: a branch of a piecewise function
  always_adds,      // the first write does not assign
  always_assigns,   // a later write does not add
};
std::string_view name_of(GradcheckDiagnosis diagnosis);

struct GradcheckReport {
  GradcheckFault fault = GradcheckFault::none;
  std::string message;  // one line: what is wrong; empty if nothing is
  GradcheckDiagnosis diagnosis = GradcheckDiagnosis::none;
  std::string diagnosis_text;  // a sentence; empty if none fits

  // The compared entry with the largest error relative to its scale: d output[output_index] / d input[input_index].
  struct Entry {
    std::string input;  // name of the input or parameter; empty: nothing was compared
    Shape input_shape;
    std::int64_t input_index = -1;  // flat; -1: along a random direction
    int output = 0;
    Shape output_shape;
    std::int64_t output_index = -1;  // flat; -1: under a random cotangent over all outputs
    double analytic = 0, numeric = 0;
    double error_bar = 0;  // of numeric
    double scale = 0;      // max(|analytic|, |numeric|, largest entry)
    double allowed = 0;    // |analytic - numeric| may be this large
    double error() const;  // |analytic - numeric| / scale
  } worst;

  // The numeric value of a wrong `worst` for several step sizes. If it settles away from the analytic value the
  // backward pass is wrong; otherwise the function has a kink there, or too little precision.
  struct SweepPoint {
    double step, numeric;
  };
  std::vector<SweepPoint> sweep;
  bool backward_is_wrong = false;

  std::int64_t inputs = 0, parameters = 0;  // checked
  std::vector<std::string> frozen;          // parameters that are not, because they are not trainable
  std::int64_t compared = 0, wrong = 0, kinks = 0;
  bool full_jacobian = true;
  double tolerance = 0;
  std::uint64_t seed = 0;

  bool passed() const { return fault == GradcheckFault::none; }
  explicit operator bool() const { return passed(); }
  std::string text() const;  // a line if it passed, a few if not
};

// The form in which a function is checked: one Var for each input, any number of outputs.
using GradcheckFunction = std::function<std::vector<Var>(std::span<const Var>)>;

// The sum over all outputs of <output, cotangent>, where `cotangent` holds one f64 for each output element, in order:
// the loss from which backward() propagates exactly `cotangent`.
Var inner_product(std::span<const Var> outputs, const Tensor& cotangent);

// Converts parameters and buffers to `dtype` while it lives, then restores the old dtypes and every bit. Gradients are
// unset on both occasions.
class ConvertScope {
 public:
  ConvertScope(Module& module, DType dtype);
  ~ConvertScope();
  ConvertScope(const ConvertScope&) = delete;
  ConvertScope& operator=(const ConvertScope&) = delete;

 private:
  struct SavedParameter {
    Parameter* parameter;
    Tensor value;
  };
  struct SavedBuffer {
    Tensor* buffer;
    Tensor value;
  };
  std::vector<SavedParameter> parameters_;
  std::vector<SavedBuffer> buffers_;
};

namespace detail {

GradcheckReport gradcheck(const GradcheckFunction& function, Module* module, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options);

inline std::vector<Var> as_vector(Var y) { return {std::move(y)}; }
inline std::vector<Var> as_vector(std::vector<Var> ys) { return ys; }
template <std::size_t N>
std::vector<Var> as_vector(const std::array<Var, N>& ys) {
  return {ys.begin(), ys.end()};
}

template <class F>
constexpr bool takes_vars(std::size_t count) {
  return [&]<std::size_t... N>(std::index_sequence<N...>) {
    auto takes = []<std::size_t... I>(std::index_sequence<I...>) {
      return std::invocable<F&, decltype((void)I, std::declval<const Var&>())...>;
    };
    return ((N == count && takes(std::make_index_sequence<N>{})) || ...);
  }
  (std::make_index_sequence<9>{});
}

template <std::size_t N, class F>
bool call_with(F& f, std::span<const Var> x, std::vector<Var>& outputs) {
  if constexpr (takes_vars<F>(N)) {
    if (x.size() != N) return false;
    [&]<std::size_t... I>(std::index_sequence<I...>) { outputs = as_vector(f(x[I]...)); }
    (std::make_index_sequence<N>{});
    return true;
  }
  return false;
}

template <class F>
std::vector<Var> call(F& f, std::span<const Var> x) {
  if constexpr (std::invocable<F&, std::span<const Var>>) {
    return as_vector(f(x));
  } else {
    std::vector<Var> outputs;
    const bool called = [&]<std::size_t... N>(std::index_sequence<N...>) {
      return (call_with<N>(f, x, outputs) || ...);
    }
    (std::make_index_sequence<9>{});
    TAP_CHECK(called, "gradcheck: the function does not take ", x.size(),
              " Vars, one for each input; give it that many parameters or one std::span<const Var>");
    return outputs;
  }
}

}  // namespace detail

// The same function in the form above.
template <class F>
GradcheckFunction gradcheck_function(F f) {
  return [f = std::move(f)](std::span<const Var> x) mutable { return detail::call(f, x); };
}

// Checks the gradient of every input. `function` is a Module (its operator() is checked, and its parameters as well) or
// anything callable as described at the top. Throws for inputs that are not f64; whatever is wrong with the function
// itself is in the report. Numeric evaluation runs without a tape.
template <class F>
GradcheckReport gradcheck(F&& function, const std::vector<Tensor>& inputs, const GradcheckOptions& options = {}) {
  if constexpr (std::derived_from<std::remove_cvref_t<F>, Module>) {
    auto f = [&](std::span<const Var> x) { return detail::call(function, x); };
    return detail::gradcheck(f, &function, inputs, options);
  } else {
    return detail::gradcheck(gradcheck_function(std::forward<F>(function)), nullptr, inputs, options);
  }
}

// The same for a function of inputs and of the parameters of `module`, all of which are checked but for frozen ones:
// those are constants, and the report names them. The module is in f64 meanwhile; afterwards its values are what they
// were and its gradients unset. Fails if the function uses a Parameter that visit() does not reach.
template <class F>
GradcheckReport gradcheck(Module& module, F&& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {}) {
  return detail::gradcheck(gradcheck_function(std::forward<F>(function)), &module, inputs, options);
}

}  // namespace tapestry
