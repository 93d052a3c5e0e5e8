// Copies between strided layouts. Axes are put in the order of the target's strides, by size, and merged.
// If then the innermost axis is contiguous in the target but another one in the source, the two are transposed in
// square blocks of vector registers; everything else goes row by row. Work is split over target elements only.
#include "core/kernels/strided_copy.h"

#include <algorithm>
#include <cstdlib>

#include "core/kernels/pointwise_map.h"

namespace tapestry::cpu {
namespace {

constexpr std::int64_t kBlock = 4096, kSerial = 32768;  // elements
constexpr int kFrom = 0, kTo = 1;

template <bool kAdd, class E>
inline void put(E& to, E value) {
  if constexpr (kAdd)
    to += value;
  else
    to = value;
}

// The walk over `shape` with its axes in the given order.
StridedWalk<2> ordered_walk(std::span<const std::int64_t> extents, const Strides& from, const Strides& to,
                            std::span<const int> order) {
  Strides sizes{};
  std::array<Strides, 2> strides{};
  for (std::size_t i = 0; i < order.size(); ++i) {
    sizes[i] = extents[order[i]];
    strides[kFrom][i] = from[order[i]];
    strides[kTo][i] = to[order[i]];
  }
  return {Shape(std::span<const std::int64_t>(sizes.data(), order.size())), strides};
}

StridedWalk<2> target_order(const Shape& shape, const Strides& from, const Strides& to) {
  std::array<int, Shape::kMaxRank> order{};
  for (int axis = 0; axis < shape.rank(); ++axis) {
    int at = axis;  // insertion sort, stable
    for (; at > 0 && std::abs(to[order[at - 1]]) < std::abs(to[axis]); --at) order[at] = order[at - 1];
    order[at] = axis;
  }
  return ordered_walk(shape.dims(), from, to, std::span(order.data(), shape.rank()));
}

template <bool kAdd, class E>
void copy_rows(const StridedWalk<2>& walk, const E* from, E* to) {
  const std::int64_t inner = walk.inner(), block = std::min(inner, kBlock), blocks = (inner + block - 1) / block;
  const std::int64_t from_stride = walk.inner_stride(kFrom), to_stride = walk.inner_stride(kTo);
  const bool contiguous = from_stride == 1 && to_stride == 1;
  parallel_for(walk.rows() * blocks, std::max<std::int64_t>(1, kSerial / block), [&](auto begin, auto end) {
    RowCursor<2> row(walk, begin / blocks);
    std::int64_t at = begin % blocks * block;
    for (std::int64_t item = begin; item < end; ++item) {
      const E* __restrict__ p = from + row.offset(kFrom) + at * from_stride;
      E* __restrict__ q = to + row.offset(kTo) + at * to_stride;
      const std::int64_t n = std::min(block, inner - at);
      if (contiguous && !kAdd)
        std::memcpy(q, p, static_cast<std::size_t>(n) * sizeof(E));
      else if (contiguous)
        for (std::int64_t i = 0; i < n; ++i) put<kAdd>(q[i], p[i]);
      else
        for (std::int64_t i = 0; i < n; ++i) put<kAdd>(q[i * to_stride], p[i * from_stride]);
      at += block;
      if (at >= inner) {
        at = 0;
        row.next();
      }
    }
  });
}

// Rows of the block become its columns. A stage interleaves row i with row i + n/2, which rotates the bits of each
// element's address (row, column) by one; after log2(n) stages row and column have changed places.
template <class V, int n>
inline void transpose_block(V (&rows)[n]) {
  using Index = std::conditional_t<sizeof(rows[0][0]) == 4, simd::Vec<std::int32_t>, simd::Vec<std::int64_t>>;
  Index low, high;
  for (int i = 0; i < n; ++i) {
    low[i] = i / 2 + i % 2 * n;
    high[i] = low[i] + n / 2;
  }
  for (int stage = 1; stage < n; stage *= 2) {
    V next[n];
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + n / 2], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + n / 2], high);
    }
    std::copy(next, next + n, rows);
  }
}

// `count` target rows of `inner` elements; row q, element p comes from from[p * from_stride + q].
template <bool kAdd, class E>
void transpose_rows(const E* __restrict__ from, std::int64_t from_stride, E* __restrict__ to, std::int64_t to_stride,
                    std::int64_t count, std::int64_t inner) {
  std::int64_t p = 0;
  if constexpr (sizeof(E) >= 4) {
    constexpr int kSide = simd::kLanes<E>;
    for (; count == kSide && p + kSide <= inner; p += kSide) {
      simd::Vec<E> block[kSide];
      for (int i = 0; i < kSide; ++i) block[i] = simd::load(from + (p + i) * from_stride);
      transpose_block(block);
      for (int i = 0; i < kSide; ++i) {
        E* q = to + i * to_stride + p;
        if constexpr (kAdd) block[i] += simd::load(q);
        simd::store(q, block[i]);
      }
    }
  }
  for (std::int64_t q = 0; q < count; ++q)
    for (std::int64_t i = p; i < inner; ++i) put<kAdd>(to[q * to_stride + i], from[i * from_stride + q]);
}

// The last axis is contiguous in the target, the one before it in the source.
template <bool kAdd, class E>
void copy_transposed(const StridedWalk<2>& walk, const E* from, E* to) {
  const int axis = walk.rank - 2;
  const std::int64_t rows = walk.extents[axis], side = sizeof(E) >= 4 ? simd::kLanes<E> : 16;
  const std::int64_t bands = (rows + side - 1) / side, inner = walk.inner();
  const std::int64_t from_stride = walk.inner_stride(kFrom), to_stride = walk.strides[kTo][axis];
  const std::int64_t grain = std::max<std::int64_t>(1, kSerial / (side * inner));
  parallel_for(walk.rows() / rows * bands, grain, [&](auto begin, auto end) {
    RowCursor<2> outer(walk, begin / bands, 2);
    std::int64_t band = begin % bands;
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t row = band * side;
      transpose_rows<kAdd>(from + outer.offset(kFrom) + row, from_stride, to + outer.offset(kTo) + row * to_stride,
                           to_stride, std::min(side, rows - row), inner);
      if (++band == bands) {
        band = 0;
        outer.next();
      }
    }
  });
}

template <bool kAdd, class E>
void copy(const E* from, const StridedLayout& source, const Shape& shape, const StridedLayout& target, E* to) {
  if (shape.numel() == 0) return;
  from += source.offset;
  to += target.offset;
  const StridedWalk<2> walk = target_order(shape, source.strides, target.strides);
  int across = walk.rank - 1;  // an axis along which the source is contiguous
  while (across >= 0 && walk.strides[kFrom][across] != 1) --across;
  if (across < 0 || across == walk.rank - 1 || walk.inner_stride(kTo) != 1) return copy_rows<kAdd>(walk, from, to);

  int order[Shape::kMaxRank], count = 0;
  for (int axis = 0; axis < walk.rank - 1; ++axis)
    if (axis != across) order[count++] = axis;
  order[count++] = across;
  order[count++] = walk.rank - 1;
  copy_transposed<kAdd>(
      ordered_walk(walk.extents, walk.strides[kFrom], walk.strides[kTo], std::span<const int>(order, count)), from, to);
}

template <class E>
void copy_bytes(const Tensor& source, const StridedLayout& from, const Shape& shape, const StridedLayout& to,
                Tensor& target) {
  copy<false>(reinterpret_cast<const E*>(source.raw_data()), from, shape, to,
              reinterpret_cast<E*>(target.mutable_raw_data()));
}

void check_types(const char* op, DType source, DType target) {
  const auto converts = [](DType dtype) { return is_16bit(dtype) || dtype == DType::f32; };
  TAP_CHECK(source == target || (converts(source) && converts(target)), op, ": source is ", source, " and target ",
            target, "; they must be equal, or f32, f16 or bf16");
}

bool packed(const Tensor& t, const StridedLayout& layout, const Shape& shape) {
  return layout.offset == 0 && layout.strides == shape.strides() && t.numel() == shape.numel();
}

}  // namespace

void strided_copy(const Tensor& source, const StridedLayout& from, const Shape& shape, const StridedLayout& to,
                  Tensor& target) {
  check_types("strided_copy", source.dtype(), target.dtype());
  if (source.dtype() != target.dtype()) {
    if (!packed(source, from, shape) || !packed(target, to, shape))
      return strided_copy(source.to(target.dtype()), from, shape, to, target);
    Tensor whole = target.reshape(shape);
    return whole.copy_from(source.reshape(shape));
  }
  switch (size_of(source.dtype())) {
    case 1:
      return copy_bytes<std::uint8_t>(source, from, shape, to, target);
    case 2:
      return copy_bytes<std::uint16_t>(source, from, shape, to, target);
    case 4:
      return copy_bytes<std::uint32_t>(source, from, shape, to, target);
    default:
      return copy_bytes<std::uint64_t>(source, from, shape, to, target);
  }
}

// Between packed tensors, as gradients are, 16 bits are added block by block; in other layouts by way of f32 copies.
void strided_add(const Tensor& source, const StridedLayout& from, const Shape& shape, const StridedLayout& to,
                 Tensor& target) {
  check_types("strided_add", source.dtype(), target.dtype());
  if (is_16bit(source.dtype()) || is_16bit(target.dtype())) {
    if (!packed(source, from, shape) || !packed(target, to, shape))
      return tapestry::detail::call_widened(&strided_add, source, from, shape, to, target);
    const MapInput<float> added{source.raw_data(), from.strides, source.dtype()};
    return map<float>(shape, target, true, {added}, [](simd::Vec<float> v) { return v; });
  }
  visit_float("strided_add", source.dtype(),
              [&]<class T>(TypeTag<T>) { copy<true>(source.data<T>(), from, shape, to, target.mutable_data<T>()); });
}

}  // namespace tapestry::cpu
