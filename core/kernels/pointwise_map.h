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
template <class T, std::size_t N>
struct MapPiece {
  T* out;
  bool add;
  std::int64_t n;
  std::array<const T*, N> in;
  std::array<std::int64_t, N> mask;
};

template <class T, class F, std::size_t N>
void map_piece(const MapPiece<T, N>& piece, F f) {
  using simd::kLanes;
  T* const out = piece.out;  // may be one of the inputs
  const std::array<const T*, N> in = piece.in;
  const std::array<std::int64_t, N> mask = piece.mask;
  const bool add = piece.add;
  const auto apply = [&](auto load) {
    return [&]<std::size_t... k>(std::index_sequence<k...>) { return f(load(in[k], mask[k])...); }
    (std::make_index_sequence<N>{});
  };
  std::int64_t i = 0;
  for (; i + kLanes<T> <= piece.n; i += kLanes<T>) {
    simd::Vec<T> y = apply([i](const T* p, std::int64_t m) { return simd::load(p + (i & m)); });
    if (add) y += simd::load(out + i);
    simd::store(out + i, y);
  }
  if (const std::int64_t rest = piece.n - i; rest > 0) {
    simd::Vec<T> y = apply([=](const T* p, std::int64_t m) { return simd::load_partial(p + (i & m), rest, T(1)); });
    if (add) y += simd::load_partial(out + i, rest);
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

// Cuts `shape` into pieces of rows and hands them to call(f, piece), spread over threads. Knows nothing of the formula,
// so it is compiled once for each number of inputs.
template <class T, std::size_t N>
void map_pieces(const Shape& shape, T* out, bool add, const MapInput<T> (&in)[N],
                void (*call)(const void* f, const MapPiece<T, N>&), const void* f) {
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
      MapPiece<T, N> piece{out + row.offset(N) + at, add, std::min(block, inner - at), {}, {}};
      for (std::size_t k = 0; k < N; ++k) {
        const T* from = in[k].data + row.offset(k);
        piece.mask[k] = walk.inner_stride(k) == 0 ? 0 : -1;
        if (piece.mask[k]) {
          piece.in[k] = from + at;
        } else {
          simd::store(repeated[k], simd::splat(*from));
          piece.in[k] = repeated[k];
        }
      }
      call(f, piece);
      at += block;
      if (at >= inner) {
        at = 0;
        row.next();
      }
    }
  });
}

// out, contiguous of `shape`, is overwritten (or added to) with f of the inputs. f takes and returns Vec<T>.
template <class T, class F, std::size_t N>
void map(const Shape& shape, T* out, bool add, const MapInput<T> (&in)[N], F f) {
  map_pieces<T, N>(
      shape, out, add, in,
      [](const void* g, const MapPiece<T, N>& piece) { map_piece(piece, *static_cast<const F*>(g)); }, &f);
}

}  // namespace tapestry::cpu
