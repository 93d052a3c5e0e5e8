// Activation checkpointing (Chen et al. 2016): what f computes is not kept for backward but computed again there, so a
// network of n blocks holds the inputs of all blocks and the insides of one. Costs one more forward pass.
#pragma once

#include "autograd/autocast.h"
#include "autograd/tape.h"
#include "core/random.h"

namespace tapestry {

namespace detail {
// Grows by 1 plus its version whenever this thread uses a Parameter, so two runs of one function let it grow alike as
// long as no Parameter in it changes.
std::uint64_t parameter_uses();

inline std::array<Var, 1> outputs_of(Var y) { return {std::move(y)}; }
template <std::size_t N>
std::array<Var, N> outputs_of(std::array<Var, N> ys) {
  return ys;
}
}  // namespace detail

// f(inputs...), a Var or a std::array of them. Values, gradients, dropout masks and the random state afterwards are
// those of a plain call, bit for bit, under whichever Autocast it was made. Every tracked Var that f reads must be one
// of `inputs`; Parameters may be used freely. f is copied and called again during backward, so what it refers to (a
// layer, say) must live until then and must not change; a Parameter that did throws:
//   x = checkpoint([&block](const Var& v) { return block(v); }, x);
// Nests. Where nothing is recorded it is a plain call.
template <class F, std::same_as<Var>... Inputs>
auto checkpoint(const F& f, const Inputs&... inputs) {
  static_assert(
      requires { detail::outputs_of(f(inputs...)); },
      "checkpoint: f takes the inputs, gives a Var or a std::array of Vars");
  using Outputs = decltype(detail::outputs_of(f(inputs...)));
  constexpr std::size_t kInputs = sizeof...(Inputs), kOutputs = std::tuple_size_v<Outputs>;
  const auto give = [](const Outputs& y) {
    if constexpr (std::is_convertible_v<std::invoke_result_t<const F&, const Inputs&...>, Var>)
      return y[0];
    else
      return y;
  };
  if (!Tape::current()) return give(detail::outputs_of(f(inputs...)));
  const RandomScope::State random = RandomScope::current();
  std::array<Tensor, kOutputs> values;
  bool uses_parameters = false;
  std::uint64_t uses = detail::parameter_uses();
  {
    const detail::NoteParameters noted;
    const Outputs y = detail::outputs_of(f(inputs...));
    for (std::size_t k = 0; k < kOutputs; ++k) values[k] = y[k].value();
    uses_parameters = noted.any();
  }
  uses = detail::parameter_uses() - uses;
  auto backward = [f = f, random, uses, low = Autocast::current(), saved = std::array<Saved, kInputs>{save(inputs)...}](
                      std::span<const Tensor> dys, std::span<const Grad> grads) {
    const RandomScope replay(random);
    Tape tape;
    const std::uint64_t uses_before = detail::parameter_uses();
    const Outputs again = [&]<std::size_t... I>(std::index_sequence<I...>) {
      const Autocast same_types(low);
      return detail::outputs_of(f(tape.watch(saved[I](), grads[I])...));
    }
    (std::index_sequence_for<Inputs...>{});
    TAP_CHECK(
        detail::parameter_uses() - uses_before == uses,
        "checkpoint: a Parameter that f uses has since been changed, or f uses others now; change it after backward");
    // One last record, whose inputs are the outputs that were used, hands each its gradient.
    Outputs used;
    std::array<Tensor, kOutputs> used_dys;
    std::size_t count = 0;
    for (std::size_t k = 0; k < kOutputs; ++k) {
      const Tensor& dy = dys[k];
      if (!dy) continue;
      TAP_CHECK(again[k].shape() == dy.shape() && again[k].dtype() == dy.dtype(), "checkpoint: f gave ", dy.dtype(),
                " ", dy.shape(), " at first and ", again[k].dtype(), " ", again[k].shape(),
                " when it was computed again; it must not depend on what changes in between");
      used[count] = again[k];
      used_dys[count++] = dy;
    }
    auto hand_over = [used_dys](const Tensor&, std::span<const Grad> outputs) {
      for (std::size_t k = 0; k < outputs.size(); ++k)
        if (outputs[k]) outputs[k].pass(used_dys[k]);
    };
    const Var end = record("checkpoint", zeros({}), hand_over, std::span<const Var>(used).first(count));
    if (end.tracked()) tape.backward(end);
    for (const Grad& grad : grads)
      if (grad && !grad.claim()) grad.tensor().fill(0);
  };
  auto call = [](auto& b, std::span<const Tensor> dys, std::span<const Grad> grads) { b(dys, grads); };
  const std::array<const Var*, kInputs> in{&inputs...};
  Outputs results;
  detail::record("checkpoint", values, in.data(), kInputs, detail::make_closure(backward, call), results.data(),
                 uses_parameters);
  return give(results);
}

}  // namespace tapestry
