// Vectors of the machine's width from GCC's vector extensions: one source for every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

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

// The first `count` lanes of p, the others `fill`: tails run through the same arithmetic as full vectors.
template <class T>
inline Vec<T> load_partial(const T* p, std::int64_t count, T fill = T(0)) {
  Vec<T> v = splat(fill);
  std::memcpy(&v, p, static_cast<std::size_t>(count) * sizeof(T));
  return v;
}
template <class T>
inline void store_partial(T* p, Vec<T> v, std::int64_t count) {
  std::memcpy(p, &v, static_cast<std::size_t>(count) * sizeof(T));
}

}  // namespace tapestry::simd
