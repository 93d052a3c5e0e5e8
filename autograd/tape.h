// Tape: the flat list of what ran, walked once in reverse by backward(). record() adds an op to it, and a user's op is
// the same thing as a built-in one:
//
//   Var square(const Var& x) {
//     Tensor y = ...;
//     return record("square", y, [x = save(x)](const Tensor& dy, Grad dx) { ... }, x);
//   }
#pragma once

#include <array>
#include <concepts>
#include <functional>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

#include "autograd/var.h"
#include "core/grad.h"

namespace tapestry {

namespace detail {
struct TapeMemory;
class Closure;

// What happens to ops and Parameters of this thread: ops are recorded; or nothing is, but the innermost tape learns
// which Parameters are used; or nothing at all.
enum class GradMode : std::uint8_t { record, note_parameters, off };
}  // namespace detail

// Scoped and thread-local: ops of this thread are recorded on the innermost living tape. With none alive nothing is
// recorded. A Var belongs to the tape that made it and throws when used with another one or after its end.
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // A leaf whose gradient grad() returns after backward.
  Var watch(Tensor value);
  // For a backward function that computes something again on a tape of its own: a leaf whose gradient is gathered
  // straight where `grad` points. A constant if `grad` is empty.
  Var watch(Tensor value, Grad grad);
  // Computes d(loss)/d(leaf) * seed for every leaf; `loss` has one element. Parameters accumulate into their own
  // gradient. Releases every record right after it ran, so it can be called once.
  void backward(const Var& loss, double seed = 1);
  // The same from a y of any shape, whose gradient is given.
  void backward(const Var& y, const Tensor& dy);
  // The gradient of a watched Var; zeros where the loss does not depend on it.
  Tensor grad(const Var& watched) const;
  // Calls f once with the complete gradient of v, when backward has it. Not called if no gradient arrives.
  void hook(const Var& v, std::function<void(const Tensor&)> f);

  std::int64_t size() const;  // records made so far
  std::vector<const detail::ParameterState*> touched_parameters() const;

  static Tape* current();  // the tape that records now, or null (none alive, or inside NoGrad)

  // Not for use outside of record() and Var.
  void check_input(const char* op, std::size_t index, const Var& v) const;
  NodeId parameter_leaf(const std::shared_ptr<detail::ParameterState>& state);
  void push(const char* op, std::span<const Tensor> outputs, const Var* const* inputs, std::size_t input_count,
            detail::Closure closure, Var* results);

 private:
  friend class Var;
  void check_start(const Var& y) const;
  void mark_scales();
  void run_records();
  void abandon() noexcept;

  detail::TapeMemory& memory_;
  Tape* outer_;
  detail::GradMode outer_mode_;
  std::uint64_t epoch_;
  bool consumed_ = false;
};

// Nothing is recorded in this thread while it lives, and tracked Vars count as constants. Nests; a Tape made inside
// records again.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  detail::GradMode outer_;
};

// A value kept for the backward pass. Reading it throws if the storage was written after it was saved.
class Saved {
 public:
  // `source`: what the value is a converted copy of, which then is what must not change.
  explicit Saved(Tensor value, Storage source = {})
      : value_(std::move(value)), source_(std::move(source)), version_(value_ ? watched().version() : 0) {}
  const Tensor& operator()() const {
    if (value_ && watched().version() != version_) [[unlikely]]
      report_change();
    return value_;
  }

 private:
  const Storage& watched() const { return source_ ? source_ : value_.storage(); }
  [[noreturn]] void report_change() const;
  Tensor value_;
  Storage source_;
  std::uint32_t version_;
};
inline Saved save(const Var& v) { return Saved(v.value(), v.source()); }
inline Saved save(const Tensor& t) { return Saved(t); }

namespace detail {

// A backward lambda, type-erased; moved once into the tape's arena.
class Closure {
 public:
  void* object;
  std::size_t size, align;
  void (*move_to)(void* from, void* to) noexcept;
  void (*run)(void* self, std::span<const Tensor> dys, std::span<const Grad> grads);
  void (*drop)(void* self) noexcept;
};

template <class Backward, std::size_t Outputs, std::size_t Inputs>
concept TakesGrads = []<std::size_t... O, std::size_t... I>(std::index_sequence<O...>, std::index_sequence<I...>) {
  return std::invocable<Backward&, decltype((void)O, std::declval<const Tensor&>())...,
                        decltype((void)I, std::declval<Grad>())...>;
}
(std::make_index_sequence<Outputs>{}, std::make_index_sequence<Inputs>{});

template <class Backward, class Call>
Closure make_closure(Backward& backward, Call) {
  static_assert(std::is_nothrow_move_constructible_v<Backward>, "record: captures must move without throwing");
  static_assert(sizeof(Backward) <= 4096, "record: capture Tensors, not large objects");
  return {&backward,
          sizeof(Backward),
          alignof(Backward),
          [](void* from, void* to) noexcept { new (to) Backward(std::move(*static_cast<Backward*>(from))); },
          [](void* self, std::span<const Tensor> dys, std::span<const Grad> grads) {
            Call{}(*static_cast<Backward*>(self), dys, grads);
          },
          [](void* self) noexcept { static_cast<Backward*>(self)->~Backward(); }};
}

// Records if a tape is alive and at least one input is tracked, or `tracked` says that something else is; otherwise the
// results are constants.
void record(const char* op, std::span<const Tensor> outputs, const Var* const* inputs, std::size_t input_count,
            Closure closure, Var* results, bool tracked = false);

// While it lives, nothing is recorded as in NoGrad, but the current tape (there must be one) lists every Parameter
// used.
class NoteParameters {
 public:
  NoteParameters();
  ~NoteParameters();
  NoteParameters(const NoteParameters&) = delete;
  NoteParameters& operator=(const NoteParameters&) = delete;
  bool any() const;

 private:
  GradMode outer_mode_;
  bool outer_any_;
};

// While it lives, backward in this thread, with the tapes inside it, marks the gradients of Parameters as those of a
// loss times `scale`. Gradients of two scales do not add up: backward throws before it changes any.
class LossScaleScope {
 public:
  explicit LossScaleScope(double scale);
  ~LossScaleScope();
  LossScaleScope(const LossScaleScope&) = delete;
  LossScaleScope& operator=(const LossScaleScope&) = delete;

 private:
  double outer_;
};

}  // namespace detail

// record(name, y, backward, inputs...): y was computed from `inputs`; backward(dy, Grad... one per input) writes their
// gradients and must claim or pass every non-empty Grad exactly once. Its captures are the saved state.
template <class Backward, std::same_as<Var>... Inputs>
Var record(const char* op, const Tensor& y, Backward backward, const Inputs&... inputs) {
  static_assert(detail::TakesGrads<Backward, 1, sizeof...(Inputs)>,
                "record: backward must take (const Tensor& dy) and one Grad for each input");
  auto call = [](Backward& b, std::span<const Tensor> dys, std::span<const Grad> grads) {
    [&]<std::size_t... I>(std::index_sequence<I...>) { b(dys[0], grads[I]...); }
    (std::index_sequence_for<Inputs...>{});
  };
  const Var* in[] = {&inputs...};
  Var result;
  detail::record(op, {&y, 1}, in, sizeof...(Inputs), detail::make_closure(backward, call), &result);
  return result;
}

// Several outputs: backward(dy0, dy1, ..., Grad...). The gradient of an output that nothing used arrives empty.
template <std::size_t N, class Backward, std::same_as<Var>... Inputs>
std::array<Var, N> record(const char* op, const std::array<Tensor, N>& outputs, Backward backward,
                          const Inputs&... inputs) {
  static_assert(detail::TakesGrads<Backward, N, sizeof...(Inputs)>,
                "record: backward must take one const Tensor& for each output and one Grad for each input");
  auto call = [](Backward& b, std::span<const Tensor> dys, std::span<const Grad> grads) {
    [&]<std::size_t... O, std::size_t... I>(std::index_sequence<O...>, std::index_sequence<I...>) {
      b(dys[O]..., grads[I]...);
    }
    (std::make_index_sequence<N>{}, std::index_sequence_for<Inputs...>{});
  };
  const Var* in[] = {&inputs...};
  std::array<Var, N> results;
  detail::record(op, outputs, in, sizeof...(Inputs), detail::make_closure(backward, call), results.data());
  return results;
}

// Any number of outputs, written to `results`: backward(std::span<const Tensor> dys, Grad).
template <class Backward>
requires std::invocable<Backward&, std::span<const Tensor>, Grad>
void record(const char* op, std::span<const Tensor> outputs, Backward backward, const Var& input, Var* results) {
  auto call = [](Backward& b, std::span<const Tensor> dys, std::span<const Grad> grads) { b(dys, grads[0]); };
  const Var* in = &input;
  detail::record(op, outputs, &in, 1, detail::make_closure(backward, call), results);
}

// Any number of inputs: backward(dy, std::span<const Grad>).
template <class Backward>
requires std::invocable<Backward&, const Tensor&, std::span<const Grad>> Var record(const char* op, const Tensor& y,
                                                                                    Backward backward,
                                                                                    std::span<const Var> inputs) {
  auto call = [](Backward& b, std::span<const Tensor> dys, std::span<const Grad> grads) { b(dys[0], grads); };
  constexpr std::size_t kInline = 16;
  const Var* few[kInline];
  std::vector<const Var*> many(inputs.size() > kInline ? inputs.size() : 0);
  const Var** in = many.empty() ? few : many.data();
  for (std::size_t i = 0; i < inputs.size(); ++i) in[i] = &inputs[i];
  Var result;
  detail::record(op, {&y, 1}, in, inputs.size(), detail::make_closure(backward, call), &result);
  return result;
}

}  // namespace tapestry
