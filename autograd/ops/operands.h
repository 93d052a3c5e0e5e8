// Operands in the types that the op's policy asks for (autograd/autocast.h). Opens every op that has a say in them:
//
//   Var mul(const Var& a_, const Var& b_) {
//     const auto [a, b] = detail::autocast<"mul">(a_, b_);
//
// a and b are then what was given, unless a type has to change.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <optional>
#include <span>
#include <tuple>

#include "autograd/autocast.h"
#include "autograd/var.h"

namespace tapestry::detail {

// The name of an op as a template argument.
template <std::size_t N>
struct OpName {
  consteval OpName(const char (&name)[N]) { std::copy_n(name, N, text); }
  constexpr std::string_view view() const { return {text, N - 1}; }
  char text[N];
};

// Which operands of a product are weights, if not the one of that index.
inline constexpr std::size_t kNoWeight = ~std::size_t{0}, kParameters = kNoWeight - 1;

// Casts operands to the type that the policy asks for, as recorded ops. But an f32 weight that a product reads in 16
// bits stays the recorded one: its gradient is written in f32, and a Parameter keeps the copy.
void convert_operands(CastPolicy policy, std::size_t weight, std::span<const Var*> operands,
                      std::optional<Var>* converted);

template <std::size_t N>
class Operands {
 public:
  template <class... V>
  Operands(CastPolicy policy, std::size_t weight, const V&... given) : operands_{&given...} {
    if (policy != CastPolicy::follow) convert_operands(policy, weight, operands_, converted_.data());
  }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;
  template <std::size_t I>
  const Var& get() const {
    return *operands_[I];
  }

 private:
  std::array<const Var*, N> operands_;
  std::array<std::optional<Var>, N> converted_;
};

template <OpName kOp, std::size_t kWeight = kNoWeight, std::same_as<Var>... V>
Operands<sizeof...(V)> autocast(const V&... operands) {
  return {policy_of(kOp.view()), kWeight, operands...};
}

// What a normalisation of x gives.
template <OpName kOp>
DType normalised_dtype(DType x) {
  static_assert(policy_of(kOp.view()) == CastPolicy::norm);
  return Autocast::low(x);
}

}  // namespace tapestry::detail

template <std::size_t N>
struct std::tuple_size<tapestry::detail::Operands<N>> : std::integral_constant<std::size_t, N> {};
template <std::size_t I, std::size_t N>
struct std::tuple_element<I, tapestry::detail::Operands<N>> {
  using type = const tapestry::Var;
};
