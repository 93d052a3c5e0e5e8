// Every row of the catalogue computes the same bits, forward and backward, wherever in memory its inputs and upstream
// gradients begin and whichever op laid them out.
#include <doctest/doctest.h>

#include <optional>

#include "autograd/ops.h"
#include "core/random.h"
#include "tests/cases/cases.h"

using namespace tapestry;

namespace {

struct Run {
  std::vector<Tensor> outputs, gradients;
};
using Layout = std::function<Var(const Var& leaf, std::size_t index)>;

// The same elements from `first` elements past the start of a longer tensor.
Tensor view_at(std::int64_t first, const Tensor& t) {
  Tensor view = full({t.numel() + first}, 0.5, t.dtype()).rows(first, t.numel()).reshape(t.shape());
  view.copy_from(t);
  return view;
}

// y; its gradient is handed on as a view that begins `first` elements into other memory.
Var gradient_at(std::int64_t first, const Var& y) {
  return record(
      "gradient_at", y.value(), [first](const Tensor& dy, Grad dx) { dx.pass(view_at(first, dy)); }, y);
}

Run run(const Case& c, const std::vector<Tensor>& leaves, const Layout& layout, std::int64_t upstream_offset) {
  Tape tape;
  std::vector<Var> watched, x, y;
  for (const Tensor& t : leaves) watched.push_back(tape.watch(t));
  for (std::size_t i = 0; i < leaves.size(); ++i) x.push_back(layout(watched[i], i));
  Run result;
  std::int64_t size = 0;
  for (const Var& v : c.function(x)) {
    result.outputs.push_back(v.value());
    size += v.numel();
    y.push_back(gradient_at(upstream_offset, v));
  }
  Tensor cotangent = empty({size}, DType::f64);
  fill_normal(cotangent, 0, 1, RandomKey{31, 0});
  const Var loss = inner_product(y, cotangent);
  if (loss.tracked()) tape.backward(loss);
  for (const Var& v : watched) result.gradients.push_back(tape.grad(v));
  return result;
}
Run run(const Case& c, const std::vector<Tensor>& inputs, std::int64_t upstream_offset = 0) {
  return run(
      c, inputs, [](const Var& leaf, std::size_t) { return leaf; }, upstream_offset);
}

// -0 becomes 0: where a gradient is added to zeros, the sign of zero is lost.
void drop_signs_of_zero(Run& run) {
  for (Tensor& t : run.gradients) t = add_scalar(t, 0).value();
}

// The first tensor that differs, or nothing.
std::string difference(const Run& packed, const Run& got) {
  for (std::size_t i = 0; i < packed.outputs.size(); ++i)
    if (!same_bits(packed.outputs[i], got.outputs[i])) return text_of("output ", i);
  for (std::size_t i = 0; i < packed.gradients.size(); ++i)
    if (!same_bits(packed.gradients[i], got.gradients[i])) return text_of("the gradient of input ", i);
  return {};
}

// Calls body(row, its inputs in the dtype, text for messages) for every row, in f32 and f64.
template <class Body>
void for_each_row(Body body) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Case& c : all_cases()) {
      if (!c.skip.empty()) continue;
      std::optional<ConvertScope> scope;
      if (c.module) scope.emplace(*c.module, dtype);
      std::vector<Tensor> inputs;
      for (const Tensor& t : c.inputs) inputs.push_back(t.to(dtype));
      body(c, inputs, text_of(c.name, " in ", dtype));
    }
  }
}

// `undo` brings the gradient of a leaf back to the shape of the input and throws if more than the input got one.
struct Relayout {
  const char* name;
  std::function<bool(const Shape&)> applies;
  std::function<Tensor(const Tensor& input)> make;  // the leaf
  std::function<Var(const Var& leaf)> take;         // the input again
  std::function<Tensor(const Tensor& gradient)> undo;
};

Axes reversed(int rank) {
  std::vector<int> order;
  for (int axis = rank - 1; axis >= 0; --axis) order.push_back(axis);
  return Axes(order);
}

std::vector<Relayout> relayouts() {
  const auto transposed = [](const auto& t) { return transpose(t); };
  const auto permuted = [](const auto& t) { return permute(t, reversed(t.shape().rank())); };
  const auto every_second = [](const auto& t) { return slice(t, 0, 0, t.shape()[0], 2); };
  return {
      {"transpose", [](const Shape& s) { return s.rank() >= 2; },
       [=](const Tensor& t) { return transposed(t).value(); }, transposed,
       [=](const Tensor& t) { return transposed(t).value(); }},
      {"permute", [](const Shape& s) { return s.rank() >= 3; }, [=](const Tensor& t) { return permuted(t).value(); },
       permuted, [=](const Tensor& t) { return permuted(t).value(); }},
      {"slice with step 2", [](const Shape& s) { return s.rank() >= 1 && s[0] > 0; },
       [](const Tensor& t) { return repeat_interleave(t, 2, 0).value(); }, every_second,
       [=](const Tensor& t) {
         const Tensor between = slice(t, 0, 1, t.shape()[0], 2).value();
         TAP_CHECK(same_bits(add_scalar(between, 0).value(), zeros_like(between)),
                   "what the slice leaves out has a gradient");
         return every_second(t).value();
       }},
  };
}

}  // namespace

TEST_CASE("F12 views 1, 2 and 3 elements into their memory give the bits of packed tensors") {
  for_each_row([](const Case& c, const std::vector<Tensor>& inputs, const std::string& name) {
    const Run packed = run(c, inputs);
    for (std::int64_t first = 1; first <= 3; ++first) {
      std::vector<Tensor> views;
      for (const Tensor& t : inputs) views.push_back(view_at((first + static_cast<std::int64_t>(views.size())) % 4, t));
      const std::string differs = difference(packed, run(c, views, first));
      CHECK_MESSAGE(differs.empty(), name, ", ", first, " elements in: ", differs);
    }
  });
}

TEST_CASE("G03 inputs that come from transpose, permute and a slice with a step give the bits of packed tensors") {
  const std::vector<Relayout> all = relayouts();
  for_each_row([&](const Case& c, const std::vector<Tensor>& inputs, const std::string& name) {
    Run packed = run(c, inputs);
    drop_signs_of_zero(packed);
    for (const Relayout& r : all) {
      const auto applies = [&](std::size_t i) { return r.applies(inputs[i].shape()); };
      std::vector<Tensor> leaves;
      for (std::size_t i = 0; i < inputs.size(); ++i) leaves.push_back(applies(i) ? r.make(inputs[i]) : inputs[i]);
      Run got = run(
          c, leaves, [&](const Var& leaf, std::size_t i) { return applies(i) ? r.take(leaf) : leaf; }, 0);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        if (applies(i)) got.gradients[i] = r.undo(got.gradients[i]);
      drop_signs_of_zero(got);
      const std::string differs = difference(packed, got);
      CHECK_MESSAGE(differs.empty(), name, ", ", r.name, ": ", differs);
    }
  });
}
