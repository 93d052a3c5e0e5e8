// The driver of every elementwise kernel: out = f(inputs...) with broadcasting, in vectors and over threads.
#pragma once

#include <algorithm>

#include "core/kernels/simd.h"
#include "core/kernels/strided_walk.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace tapestry::cpu {

// Elements that one thread takes at a time along a row, and how many are too few to wake another thread.
inline constexpr std::int64_t kMapBlock = 2048, kMapSerial = 16384;

// One contiguous piece of a row. An input that repeats has mask 0 and points at a vector filled with its value.
template <bool kAdd, class T, class F, std::size_t N>
inline void map_run(T* __restrict__ out, std::array<const T*, N> in, std::array<std::int64_t, N> mask, std::int64_t n,
                    F f) {
  using simd::kLanes;
  const auto apply = [&](auto load) {
    return [&]<std::size_t... k>(std::index_sequence<k...>) { return f(load(in[k], mask[k])...); }
    (std::make_index_sequence<N>{});
  };
  std::int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) {
    simd::Vec<T> y = apply([i](const T* p, std::int64_t m) { return simd::load(p + (i & m)); });
    if constexpr (kAdd) y += simd::load(out + i);
    simd::store(out + i, y);
  }
  if (const std::int64_t rest = n - i; rest > 0) {
    simd::Vec<T> y = apply([=](const T* p, std::int64_t m) { return simd::load_partial(p + (i & m), rest, T(1)); });
    if constexpr (kAdd) y += simd::load_partial(out + i, rest);
    simd::store_partial(out + i, y, rest);
  }
}

// An operand of map(). Its innermost stride over the common shape is 0 or 1.
template <class T>
struct MapInput {
  const T* data;
  Strides strides;
};
template <class T>
MapInput<T> map_input(const Tensor& t, const Shape& shape) {
  return {t.data<T>(), broadcast_strides(t.shape(), shape)};
}

// out, contiguous of `shape`, is overwritten (or added to) with f of the inputs. f takes and returns Vec<T>.
template <class T, class F, std::size_t N>
void map(const Shape& shape, T* out, bool add, const MapInput<T> (&in)[N], F f) {
  std::array<Strides, N + 1> all{};
  for (std::size_t k = 0; k < N; ++k) all[k] = in[k].strides;
  all[N] = shape.strides();
  const StridedWalk<N + 1> walk(shape, all);
  const std::int64_t inner = walk.inner(), block = std::min(inner, kMapBlock);
  if (walk.numel == 0) return;
  const std::int64_t blocks = (inner + block - 1) / block;

  parallel_for(walk.rows() * blocks, std::max<std::int64_t>(1, kMapSerial / block), [&](auto begin, auto end) {
    RowCursor<N + 1> row(walk, begin / blocks);
    std::int64_t at = begin % blocks * block;
    T repeated[N][simd::kLanes<T>];
    for (std::int64_t item = begin; item < end; ++item) {
      std::array<const T*, N> from;
      std::array<std::int64_t, N> mask;
      for (std::size_t k = 0; k < N; ++k) {
        from[k] = in[k].data + row.offset(k);
        mask[k] = walk.inner_stride(k) == 0 ? 0 : -1;
        if (mask[k]) {
          from[k] += at;
        } else {
          simd::store(repeated[k], simd::splat(*from[k]));
          from[k] = repeated[k];
        }
      }
      T* to = out + row.offset(N) + at;
      const std::int64_t n = std::min(block, inner - at);
      if (add)
        map_run<true>(to, from, mask, n, f);
      else
        map_run<false>(to, from, mask, n, f);
      at += block;
      if (at >= inner) {
        at = 0;
        row.next();
      }
    }
  });
}

}  // namespace tapestry::cpu
