// The driver of every elementwise kernel: out = f(inputs...) with broadcasting, in vectors and over threads. f16 and
// bf16 pass through blocks in f32 (core/kernels/mixed.h), so each may stand where a float does.
#pragma once

#include <algorithm>

#include "core/kernels/mixed.h"
#include "core/kernels/simd.h"
#include "core/kernels/strided_walk.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace tapestry::cpu {

// Elements that one thread takes at a time along a row, and how many are too few to wake another thread.
// With 16-bit operands a piece and its copies must fit the first-level cache.
inline constexpr std::int64_t kMapBlock = 2048, kMapMixedBlock = 512, kMapSerial = 16384;

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
  const void* data;
  Strides strides;
  DType dtype = dtype_of<T>;
};
template <class T>
MapInput<T> map_input(const Tensor& t, const Shape& shape) {
  const Source<T> checked(t);
  return {t.raw_data(), broadcast_strides(t.shape(), shape), t.dtype()};
}

// Where map() writes.
template <class T>
struct MapOutput {
  MapOutput(T* p) : data(p), dtype(dtype_of<T>) {}
  MapOutput(Tensor& t) : data(t.mutable_raw_data()), dtype(t.dtype()) { const Target<T> checked(t); }
  void* data;
  DType dtype;
};

// Cuts `shape` into pieces of rows and hands them to call(f, piece), spread over threads. Knows nothing of the formula,
// so it is compiled once for each number of inputs.
template <class T, std::size_t N>
void map_pieces(const Shape& shape, const MapOutput<T>& out, bool add, const MapInput<T> (&in)[N],
                void (*call)(const void* f, const MapPiece<T, N>&), const void* f) {
  std::array<Strides, N + 1> all{};
  bool mixed = is_16bit(out.dtype);
  for (std::size_t k = 0; k < N; ++k) {
    all[k] = in[k].strides;
    mixed |= is_16bit(in[k].dtype);
  }
  all[N] = shape.strides();
  const StridedWalk<N + 1> walk(shape, all);
  const std::int64_t inner = walk.inner(), block = std::min(inner, mixed ? kMapMixedBlock : kMapBlock);
  if (walk.numel == 0) return;
  const std::int64_t blocks = (inner + block - 1) / block;

  parallel_for(walk.rows() * blocks, std::max<std::int64_t>(1, kMapSerial / block), [&](auto begin, auto end) {
    RowCursor<N + 1> row(walk, begin / blocks);
    std::int64_t at = begin % blocks * block;
    T repeated[N][simd::kLanes<T>], buffers[N + 1][kMapMixedBlock];
    const Target<T> target(out.data, out.dtype);
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t to = row.offset(N) + at, n = std::min(block, inner - at);
      MapPiece<T, N> piece{target.open(to, n, add, buffers[N]), add, n, {}, {}};
      for (std::size_t k = 0; k < N; ++k) {
        const Source<T> source(in[k].data, in[k].dtype);
        piece.mask[k] = walk.inner_stride(k) == 0 ? 0 : -1;
        if (piece.mask[k]) {
          piece.in[k] = source.read(row.offset(k) + at, n, buffers[k]);
        } else {
          simd::store(repeated[k], simd::splat(*source.read(row.offset(k), 1, buffers[k])));
          piece.in[k] = repeated[k];
        }
      }
      call(f, piece);
      target.close(to, n, piece.out);
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
void map(const Shape& shape, std::type_identity_t<MapOutput<T>> out, bool add, const MapInput<T> (&in)[N], F f) {
  map_pieces<T, N>(
      shape, out, add, in,
      [](const void* g, const MapPiece<T, N>& piece) { map_piece(piece, *static_cast<const F*>(g)); }, &f);
}

}  // namespace tapestry::cpu
