// Everything here runs only after a failure, so it computes the full Jacobian anew and keeps nothing from the check.
#include "autograd/gradcheck_explanation.h"

#include <algorithm>
#include <cmath>

#include "autograd/gradcheck_diagnosis.h"

namespace tapestry::detail {
namespace {

constexpr std::int64_t kDiagnosisLimit = 200'000;  // entries of the Jacobian

std::vector<double> numeric_jacobian(const CheckedFunction& f, const CheckedFunction::Leaf& leaf, double step) {
  const std::int64_t elements = leaf.value().numel();
  std::vector<double> result;
  for (std::int64_t j = 0; j < elements; ++j) {
    const CheckedFunction::Stencil s = f.evaluate_around(leaf, j, step);
    result.resize(s.plus1.size() * static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < s.plus1.size(); ++i)
      result[i * static_cast<std::size_t>(elements) + static_cast<std::size_t>(j)] =
          (s.plus1[i] - s.minus1[i]) / (2 * step * leaf.unit(j));
  }
  return result;
}

// A leaf with another value for a while.
class MovedLeaf {
 public:
  MovedLeaf(const CheckedFunction::Leaf& leaf, const Tensor& value) : leaf_(leaf), original_(leaf.value().clone()) {
    leaf.parameter->mutable_value().copy_from(value);
  }
  ~MovedLeaf() { leaf_.parameter->mutable_value().copy_from(original_); }
  MovedLeaf(const MovedLeaf&) = delete;
  MovedLeaf& operator=(const MovedLeaf&) = delete;

 private:
  const CheckedFunction::Leaf& leaf_;
  const Tensor original_;
};

std::vector<Tensor> outputs_of(const CheckedFunction& f) {
  Tape tape;
  std::vector<Tensor> outputs;
  for (const Var& y : f.record_on(tape)) outputs.push_back(y.value());
  return outputs;
}

Evidence gather(const CheckedFunction& f, double step) {
  Evidence evidence;
  evidence.outputs = outputs_of(f);
  std::int64_t size = 0;
  for (const Tensor& y : evidence.outputs) size += y.numel();
  for (const CheckedFunction::Leaf& leaf : f.leaves())
    evidence.inputs.push_back({leaf.name, leaf.value().clone(), {}, numeric_jacobian(f, leaf, step)});
  for (std::int64_t i = 0; i < size; ++i) {
    Tensor cotangent = zeros({size}, DType::f64);
    cotangent.mutable_data<double>()[i] = 1;
    const CheckedFunction::Gradients gradients = f.gradients(cotangent);
    for (std::size_t l = 0; l < gradients.size(); ++l)
      evidence.inputs[l].analytic.insert(evidence.inputs[l].analytic.end(), gradients[l].begin(), gradients[l].end());
  }
  evidence.numeric_at = [&f, step](std::size_t of, std::size_t moved, const Tensor& value) {
    const MovedLeaf scope(f.leaves()[moved], value);
    return numeric_jacobian(f, f.leaves()[of], step);
  };
  return evidence;
}

// The worst input first, then any other that is wrong: what went to two inputs may show in one of them only.
Diagnosis diagnose_all(const Evidence& evidence, const std::string& worst) {
  std::vector<std::size_t> order;
  for (std::size_t l = 0; l < evidence.inputs.size(); ++l)
    order.insert(evidence.inputs[l].name == worst ? order.begin() : order.end(), l);
  for (std::size_t l : order) {
    const Jacobian& jacobian = evidence.inputs[l];
    double scale = 0, difference = 0;
    for (std::size_t k = 0; k < jacobian.numeric.size(); ++k) {
      scale = std::max(scale, std::abs(jacobian.numeric[k]));
      difference = std::max(difference, std::abs(jacobian.numeric[k] - jacobian.analytic[k]));
    }
    if (difference <= 1e-6 * scale) continue;
    if (Diagnosis d = diagnose(evidence, l)) return d;
  }
  return {};
}

void sweep(double step, const std::function<double(double)>& slope, GradcheckReport& report) {
  for (double factor = 100; factor > 5e-4; factor /= 10) report.sweep.push_back({step * factor, slope(step * factor)});
  const auto& points = report.sweep;
  bool agrees = false, settled = false;
  for (std::size_t k = 0; k < points.size(); ++k) {
    const double off = std::abs(points[k].numeric - report.worst.analytic);
    agrees |= off <= std::max(report.worst.allowed, 1e-2 * std::abs(report.worst.numeric - report.worst.analytic));
    if (k > 0) settled |= std::abs(points[k].numeric - points[k - 1].numeric) <= 1e-2 * off;
  }
  report.backward_is_wrong = settled && !agrees;
}

}  // namespace

void explain(const CheckedFunction& function, double step, const std::function<double(double)>& worst_slope,
             GradcheckReport& report) {
  sweep(step, worst_slope, report);
  std::int64_t outputs = 0, elements = 0;
  for (const Tensor& y : outputs_of(function)) outputs += y.numel();
  for (const CheckedFunction::Leaf& leaf : function.leaves()) {
    if (leaf.value().dtype() != DType::f64) return;  // too imprecise to tell patterns apart
    elements += leaf.value().numel();
  }
  if (elements == 0 || outputs > kDiagnosisLimit / elements) return;
  Diagnosis diagnosis = diagnose_all(gather(function, step), report.worst.input);
  report.diagnosis = diagnosis.kind;
  report.diagnosis_text = std::move(diagnosis.text);
}

}  // namespace tapestry::detail
