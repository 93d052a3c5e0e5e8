// How a kernel written for f32 and f64 serves f16 and bf16: it works on f32 copies of those arguments, and each result
// is rounded once when it is copied back.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "core/grad.h"

namespace tapestry::detail {

// What stands in for an argument of the kernel's parameter type P while it runs. Most stand for themselves, structs
// that carry tensors among them: those tensors the kernel converts itself.
template <class P>
struct Widened {
  static bool needed(const std::remove_reference_t<P>&) { return false; }
  explicit Widened(P argument) : given(static_cast<P>(argument)) {}
  P get() { return static_cast<P>(given); }
  void finish() {}
  P given;
};

// What needs no copy is handed on by reference: a second handle would keep Grad::claim_over from taking its memory.
template <>
struct Widened<const Tensor&> {
  static bool needed(const Tensor& t) { return t && is_16bit(t.dtype()); }
  explicit Widened(const Tensor& t) : given(t), wide(needed(t) ? widened(t) : Tensor()) {}
  const Tensor& get() { return wide ? wide : given; }
  void finish() {}
  static Tensor widened(const Tensor& t) {
    const MemoryScope scope(MemoryCategory::workspace);
    return t.to(DType::f32);
  }
  const Tensor& given;
  Tensor wide;
};

// Outputs are copied in as well, since a kernel may write only a part of them or add to what is there.
template <>
struct Widened<Tensor&> : Widened<const Tensor&> {
  explicit Widened(Tensor& t) : Widened<const Tensor&>(t), target(t) {}
  Tensor& get() { return wide ? wide : target; }
  void finish() {
    if (wide) target.copy_from(wide);
  }
  Tensor& target;
};

// The kernel gathers into a slot of its own, which holds a copy of what is there already; the real gradient is claimed
// if the kernel claimed or passed its own.
template <>
struct Widened<Grad> {
  Widened(const Widened&) = delete;
  static bool needed(const Grad& g) { return g && is_16bit(g.dtype()); }
  explicit Widened(const Grad& g) : given(g), wide(g) {
    if (!needed(g)) return;
    const GradSlot& own = *g.slot();
    slot = {own.set ? Widened<const Tensor&>::widened(own.tensor) : Tensor(), own.shape, DType::f32, own.device,
            own.set};
    wide = Grad(&slot, &writes);
  }
  Grad get() const { return wide; }
  void finish() {
    if (writes == 0) return;
    (void)given.claim();
    given.tensor().copy_from(slot.tensor);
  }
  Grad given, wide;
  GradSlot slot;
  std::uint8_t writes = 0;
};

template <class... P, class... A>
void call_widened(void (*kernel)(P...), A&&... arguments) {
  if (!(Widened<P>::needed(arguments) || ...)) [[likely]]
    return kernel(arguments...);
  std::tuple<Widened<P>...> wide(arguments...);
  std::apply([&](auto&... w) { kernel(w.get()...); }, wide);
  std::apply([](auto&... w) { (w.finish(), ...); }, wide);
}

}  // namespace tapestry::detail
