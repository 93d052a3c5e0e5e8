// Inputs become Parameters here, so that backward writes into memory whose content we choose: a gradient that keeps NaN
// was not assigned by its first write, one that forgets what it held was not added to.
#include "autograd/gradcheck_function.h"

#include <algorithm>
#include <limits>

namespace tapestry::detail {
namespace {

void read(const Tensor& t, double* out) {
  visit_float("gradcheck", t.dtype(), [&]<class T>(TypeTag<T>) {
    const T* p = t.data<T>();
    std::copy(p, p + t.numel(), out);
  });
}

// Gradient memory as in the flat buffer of an optimizer, for as long as it lives.
class PreparedMemory {
 public:
  PreparedMemory(const std::vector<CheckedFunction::Leaf>& leaves, CheckedFunction::Memory before) : leaves_(leaves) {
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      const Tensor& value = leaves[i].value();
      GradSlot& slot = leaves[i].parameter->state()->grad;
      const double fill = before == CheckedFunction::Memory::nan ? std::numeric_limits<double>::quiet_NaN() : 0;
      slot.set = before == CheckedFunction::Memory::window;
      slot.tensor = slot.set ? CheckedFunction::window(leaves[i], i) : full(value.shape(), fill, value.dtype());
      slot.pinned = true;
    }
  }
  ~PreparedMemory() {
    for (const CheckedFunction::Leaf& leaf : leaves_) {
      GradSlot& slot = leaf.parameter->state()->grad;
      slot.tensor = Tensor();
      slot.set = slot.pinned = false;
    }
  }
  PreparedMemory(const PreparedMemory&) = delete;
  PreparedMemory& operator=(const PreparedMemory&) = delete;

 private:
  const std::vector<CheckedFunction::Leaf>& leaves_;
};

}  // namespace

CheckedFunction::CheckedFunction(const GradcheckFunction& function, Module* module, const std::vector<Tensor>& inputs,
                                 const GradcheckOptions& options)
    : function_(function), allow_f32_(options.allow_f32) {
  inputs_.reserve(inputs.size());
  for (const Tensor& t : inputs) inputs_.emplace_back(t.clone());
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    leaves_.push_back({i < options.names.size() ? options.names[i] : text_of("input ", i), &inputs_[i]});
  if (!module) return;
  for (const NamedParameter& p : parameters(*module)) {
    if (p.parameter->trainable())
      leaves_.push_back({p.name, p.parameter});
    else
      frozen_.push_back(p.name);
  }
}

std::vector<Var> CheckedFunction::call(std::span<const Var> x) const {
  std::vector<Var> outputs = function_(x);
  TAP_CHECK(!outputs.empty(), "gradcheck: the function returned no output");
  for (const Var& y : outputs) {
    TAP_CHECK(y, "gradcheck: the function returned an empty Var");
    TAP_CHECK(y.dtype() == DType::f64 || (allow_f32_ && y.dtype() == DType::f32),
              "gradcheck: every output must be f64, but one is ", y.dtype());
  }
  return outputs;
}

CheckedFunction::Outputs CheckedFunction::flatten(const std::vector<Var>& outputs) {
  std::size_t size = 0;
  for (const Var& y : outputs) size += static_cast<std::size_t>(y.numel());
  Outputs flat(size);
  double* out = flat.data();
  for (const Var& y : outputs) {
    read(y.value(), out);
    out += y.numel();
  }
  return flat;
}

CheckedFunction::Outputs CheckedFunction::evaluate() const {
  const NoGrad no_grad;
  const std::vector<Var> x(inputs_.begin(), inputs_.end());
  return flatten(call(x));
}

template <class Move>
CheckedFunction::Stencil CheckedFunction::around(const Leaf& leaf, Move move) const {
  Tensor& value = leaf.parameter->mutable_value();
  const Tensor original = value.clone();
  const auto at = [&](double steps) {
    move(steps, original, value);
    return evaluate();
  };
  try {
    Stencil s{at(-2), at(-1), at(1), at(2)};
    value.copy_from(original);
    return s;
  } catch (...) {
    value.copy_from(original);
    throw;
  }
}

CheckedFunction::Stencil CheckedFunction::evaluate_around(const Leaf& leaf, const std::vector<double>& direction,
                                                          double step) const {
  return around(leaf, [&](double steps, const Tensor& from, Tensor& to) {
    visit_float("gradcheck", to.dtype(), [&]<class T>(TypeTag<T>) {
      const T* x = from.data<T>();
      T* moved = to.mutable_data<T>();
      for (std::size_t j = 0; j < direction.size(); ++j)
        moved[j] = static_cast<T>(x[j] + steps * step * direction[j] * std::max(1.0, std::abs(double(x[j]))));
    });
  });
}

CheckedFunction::Stencil CheckedFunction::evaluate_around(const Leaf& leaf, std::int64_t index, double step) const {
  const double x = leaf.value().at(index), distance = step * leaf.unit(index);
  return around(leaf, [&](double steps, const Tensor&, Tensor& to) {
    visit_float("gradcheck", to.dtype(),
                [&]<class T>(TypeTag<T>) { to.mutable_data<T>()[index] = static_cast<T>(x + steps * distance); });
  });
}

std::vector<Var> CheckedFunction::record_on(Tape& tape) const {
  std::vector<Var> x;
  for (const Parameter& p : inputs_) x.push_back(tape.watch(p.value()));
  return call(x);
}

Tensor CheckedFunction::window(const Leaf& leaf, std::size_t index) {
  Tensor t = empty_like(leaf.value());
  fill_normal(t, 0, 1, RandomKey{0x77696e646f77, index});
  return t;
}

CheckedFunction::Gradients CheckedFunction::gradients(const Tensor& cotangent, Memory before) const {
  const PreparedMemory memory(leaves_, before);
  Tape tape;
  const std::vector<Var> x(inputs_.begin(), inputs_.end());
  const std::vector<Var> outputs = call(x);
  const Var loss = inner_product(outputs, cotangent);
  if (loss.tracked()) tape.backward(loss);
  Gradients result(leaves_.size());
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    result[i].assign(static_cast<std::size_t>(leaves_[i].value().numel()), 0);
    const GradSlot& slot = leaves_[i].parameter->state()->grad;
    if (slot.set) read(slot.tensor, result[i].data());
  }
  return result;
}

}  // namespace tapestry::detail
