// Vectors of the machine's width from GCC's vector extensions: one source for every instruction set.
// Code templated on A runs on float, double and their vectors alike; constants in it are written T(0.5) with
// T = Element<A>, since a scalar combines with a vector of its own type.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace tapestry::simd {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vec = typename VectorOf<T>::type;
template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class A>
concept Vector = std::same_as<A, Vec<float>> || std::same_as<A, Vec<double>>;
template <class A>
concept Scalar = std::same_as<A, float> || std::same_as<A, double>;
template <class A>
concept Real = Vector<A> || Scalar<A>;

// The type of one lane: float for float and Vec<float>.
template <Real A>
struct ElementOf {
  using type = std::remove_cvref_t<decltype(A{}[0])>;
};
template <Scalar A>
struct ElementOf<A> {
  using type = A;
};
template <class A>
using Element = typename ElementOf<A>::type;

template <class T>
inline Vec<T> load(const T* p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <class T>
inline void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof(v));
}
template <class T>
inline Vec<T> splat(T x) {
  return x - Vec<T>{};
}
// x in every lane of an A.
template <Real A>
inline A constant(Element<A> x) {
  if constexpr (Scalar<A>)
    return x;
  else
    return splat(x);
}

// The first `count` lanes of p, the others `fill`: tails run through the same arithmetic as full vectors. Masked
// instructions where there are any: a copy through memory would stall the load that follows it.
template <class T>
inline Vec<T> load_partial(const T* p, std::int64_t count, T fill = T(0)) {
  if (count == kLanes<T>) return load(p);
#if defined(__AVX512F__)
  const unsigned mask = (1u << count) - 1;
  if constexpr (sizeof(T) == 4)
    return _mm512_mask_loadu_ps(splat(fill), static_cast<__mmask16>(mask), p);
  else
    return _mm512_mask_loadu_pd(splat(fill), static_cast<__mmask8>(mask), p);
#else
  Vec<T> v = splat(fill);
  std::memcpy(&v, p, static_cast<std::size_t>(count) * sizeof(T));
  return v;
#endif
}
template <class T>
inline void store_partial(T* p, Vec<T> v, std::int64_t count) {
  if (count == kLanes<T>) return store(p, v);
#if defined(__AVX512F__)
  const unsigned mask = (1u << count) - 1;
  if constexpr (sizeof(T) == 4)
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>(mask), v);
  else
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>(mask), v);
#else
  std::memcpy(p, &v, static_cast<std::size_t>(count) * sizeof(T));
#endif
}

// Lane by lane: mask ? a : b. Masks come from comparisons (bool for scalars) and combine with & and |.
template <class Mask, Real A>
inline A select(Mask mask, A a, A b) {
  return mask ? a : b;
}
template <class Mask, Vector A>
inline A select(Mask mask, A a, Element<A> b) {
  return mask ? a : splat(b);
}
template <class Mask, Vector A>
inline A select(Mask mask, Element<A> a, A b) {
  return mask ? splat(a) : b;
}

// The larger and the smaller of each lane; NaN where either is NaN.
template <Real A>
inline A max(A a, A b) {
  return select((a > b) | (a != a), a, b);
}
template <Real A>
inline A min(A a, A b) {
  return select((a < b) | (a != a), a, b);
}

// Horizontal: combines the upper half of the lanes with the lower half until one is left. A fixed tree.
// Shuffles rather than copies of halves, which would keep an accumulator in memory all through the loop before.
template <int count, class T, class V, class Combine>
inline T fold(V v, Combine combine) {
  if constexpr (count == 1) {
    return v[0];
  } else {
    return [&]<int... lane>(std::integer_sequence<int, lane...>) {
      return fold<count / 2, T>(
          combine(__builtin_shufflevector(v, v, lane...), __builtin_shufflevector(v, v, (lane + count / 2)...)),
          combine);
    }
    (std::make_integer_sequence<int, count / 2>{});
  }
}
template <Vector A>
inline Element<A> sum(A v) {
  using T = Element<A>;
  return fold<kLanes<T>, T>(v, [](auto a, auto b) { return a + b; });
}
// The largest lane, NaN if any lane is.
template <Vector A>
inline Element<A> max(A v) {
  using T = Element<A>;
  return fold<kLanes<T>, T>(v, [](auto a, auto b) { return (a > b) | (a != a) ? a : b; });
}

}  // namespace tapestry::simd
