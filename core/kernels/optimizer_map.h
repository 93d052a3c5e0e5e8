// The driver of the elementwise optimizer kernels: one rule for all elements of flat buffers, in vectors and over
// threads, each array read and written once.
#pragma once

#include <algorithm>
#include <array>

#include "core/kernels/optimizer.h"
#include "core/kernels/simd.h"
#include "core/parallel.h"

namespace tapestry::cpu {

inline constexpr std::int64_t kFlatBlock = 16384;

// Calls body(begin, end) on runs of whole blocks that cover the range; only the last run may end inside a block. Blocks
// are of fixed size, so that no sum over them depends on the number of threads.
template <class Body>
void for_blocks(const FlatRange& range, Body&& body) {
  const std::int64_t blocks = (range.end - range.begin + kFlatBlock - 1) / kFlatBlock;
  parallel_for(blocks, 1, [&](std::int64_t first, std::int64_t last) {
    body(range.begin + first * kFlatBlock, std::min(range.begin + last * kFlatBlock, range.end));
  });
}

inline void check_range(const char* kernel, const FlatRange& range, const Tensor& value, const Tensor& other) {
  TAP_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= value.numel(), kernel, ": range [",
            range.begin, ", ", range.end, ") must lie in [0, ", value.numel(), ")");
  TAP_CHECK(other.numel() == value.numel(), kernel, ": the buffers hold ", value.numel(), " and ", other.numel(),
            " elements, but must be equal");
}

// rule(p, g, moments...) takes Vec<T>, the gradient by value and what it changes by reference. Every element goes
// through the same vector arithmetic, the last ones too.
template <class T, class Rule, std::size_t N>
void map_flat(T* value, const T* grad, const std::array<T*, N> moments, std::int64_t begin, std::int64_t end,
              const Rule rule) {
  using simd::kLanes;
  const auto at = [&](std::int64_t i, auto load, auto store) {
    simd::Vec<T> p = load(value + i);
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      std::array<simd::Vec<T>, N> m{load(moments[k] + i)...};
      rule(p, load(grad + i), m[k]...);
      (store(moments[k] + i, m[k]), ...);
    }
    (std::make_index_sequence<N>{});
    store(value + i, p);
  };
  std::int64_t i = begin;
  for (; i + kLanes<T> <= end; i += kLanes<T>)
    at(
        i, [](const T* from) { return simd::load(from); }, [](T* to, simd::Vec<T> x) { simd::store(to, x); });
  if (const std::int64_t rest = end - i; rest > 0)
    at(
        i, [=](const T* from) { return simd::load_partial(from, rest); },
        [=](T* to, simd::Vec<T> x) { simd::store_partial(to, x, rest); });
}

// Rule<T>(step) for the value, the gradient and N moments, all of one length.
template <template <class> class Rule, class Step, std::size_t N>
void update_flat(const char* kernel, Tensor& value, const Tensor& grad, const std::array<Tensor*, N>& moments,
                 const FlatRange& range, const Step& step) {
  check_range(kernel, range, value, grad);
  for (const Tensor* m : moments) check_range(kernel, range, value, *m);
  visit_float(kernel, value.dtype(), [&]<class T>(TypeTag<T>) {
    const Rule<T> rule(step);
    T* const p = value.mutable_data<T>();
    const T* const g = grad.data<T>();
    std::array<T*, N> m{};
    std::transform(moments.begin(), moments.end(), m.begin(), [](Tensor* t) { return t->mutable_data<T>(); });
    for_blocks(range, [&](std::int64_t begin, std::int64_t end) { map_flat(p, g, m, begin, end, rule); });
  });
}

}  // namespace tapestry::cpu
