// Activation checkpointing (Chen et al. 2016): what f computes is not kept for backward but computed again there, so a
// network of n blocks holds the inputs of all blocks and the insides of one. Costs one more forward pass.
#pragma once

#include "autograd/tape.h"
#include "core/random.h"

namespace tapestry {

// f(inputs...), a Var. Values, gradients, dropout masks and the random state afterwards are those of a plain call, bit
// for bit. Every tracked Var that f reads must be one of `inputs`; Parameters may be used freely. f is copied and
// called again during backward, so what it refers to (a layer, say) must live until then and must not change:
//   x = checkpoint([&block](const Var& v) { return block(v); }, x);
// Nests. Where nothing is recorded it is a plain call.
template <class F, std::same_as<Var>... Inputs>
Var checkpoint(const F& f, const Inputs&... inputs) {
  static_assert(std::is_invocable_r_v<Var, const F&, const Inputs&...>, "checkpoint: f takes the inputs, gives a Var");
  if (!Tape::current()) return f(inputs...);
  constexpr std::size_t kInputs = sizeof...(Inputs);
  const RandomScope::State random = RandomScope::current();
  Tensor y;
  bool uses_parameters = false;
  {
    const detail::NoteParameters noted;
    y = Var(f(inputs...)).value();
    uses_parameters = noted.any();
  }
  auto backward = [f = f, random, saved = std::array<Saved, kInputs>{save(inputs)...}](const Tensor& dy,
                                                                                       std::span<const Grad> grads) {
    const RandomScope replay(random);
    Tape tape;
    const Var again = [&]<std::size_t... I>(std::index_sequence<I...>)->Var {
      return f(tape.watch(saved[I](), grads[I])...);
    }
    (std::index_sequence_for<Inputs...>{});
    TAP_CHECK(again.shape() == dy.shape() && again.dtype() == dy.dtype(), "checkpoint: f gave ", dy.dtype(), " ",
              dy.shape(), " at first and ", again.dtype(), " ", again.shape(),
              " when it was computed again; it must not depend on what changes in between");
    if (again.tracked()) tape.backward(again, dy);
    for (const Grad& grad : grads)
      if (grad && !grad.claim()) grad.tensor().fill(0);
  };
  auto call = [](auto& b, std::span<const Tensor> dys, std::span<const Grad> grads) { b(dys[0], grads); };
  const std::array<const Var*, kInputs> in{&inputs...};
  Var result;
  detail::record("checkpoint", {&y, 1}, in.data(), kInputs, detail::make_closure(backward, call), &result,
                 uses_parameters);
  return result;
}

}  // namespace tapestry
