// What attention does to one row of scores: masks, softmax and its derivative, dropout; and the sizes of one call.
// Hidden scores are selected to -inf, and hidden P and dS to 0, whatever stands in q, k, v or dout.
#pragma once

#include <array>
#include <limits>

#include "core/kernels/attention.h"
#include "core/kernels/attention_tile.h"
#include "core/kernels/convert.h"
#include "core/kernels/simd_math.h"

namespace tapestry::cpu::attn {

using simd::Vec;

template <class T>
constexpr T kMinusInf = -std::numeric_limits<T>::infinity();
inline constexpr std::int64_t kSerialProducts = 64 * 1024;  // fewer multiplications than this stay in one thread

template <class T>
Vec<T> lane_numbers() {
  Vec<T> lanes{};
  for (int i = 0; i < kLanes<T>; ++i) lanes[i] = static_cast<T>(i);
  return lanes;
}

// Which keys the queries of one (batch, head) see.
template <class T>
struct Visibility {
  const T* added = nullptr;  // float mask at query 0, key 0; or null
  const std::uint8_t* kept = nullptr;
  std::int64_t query_stride = 0, key_stride = 0;
  std::int64_t keys = 0;   // the ones that are not padding
  std::int64_t shift = 0;  // query i sees keys below i + shift

  std::int64_t limit(std::int64_t i) const { return std::clamp<std::int64_t>(i + shift, 0, keys); }
  std::int64_t first_query(std::int64_t key) const { return std::max<std::int64_t>(0, key - shift + 1); }
  bool operator()(std::int64_t i, std::int64_t j) const {
    const std::int64_t at = i * query_stride + j * key_stride;
    return j < limit(i) && (!kept || kept[at]) && (!added || added[at] != kMinusInf<T>);
  }

  // Turns products of query i into scores: scaled, masked, -inf where hidden and up to the next whole vector.
  void finish(std::int64_t i, T scale, T* scores) const {
    const std::int64_t count = limit(i);
    // Only whole vectors are stored: a later load of one would wait for several narrow stores.
    for (std::int64_t j = 0; j < count; j += kLanes<T>) {
      const auto inside = lane_numbers<T>() < static_cast<T>(std::min<std::int64_t>(count - j, kLanes<T>));
      simd::store(scores + j, simd::select(inside, simd::load(scores + j) * scale, kMinusInf<T>));
    }
    if (kept) {
      const std::uint8_t* row = kept + i * query_stride;
      for (std::int64_t j = 0; j < count; ++j) scores[j] = row[j * key_stride] ? scores[j] : kMinusInf<T>;
    }
    if (added) {
      const T* row = added + i * query_stride;
      for (std::int64_t j = 0; j < count; ++j) {
        const T m = row[j * key_stride];
        scores[j] = m == kMinusInf<T> ? m : scores[j] + m;
      }
    }
  }
};

// Calls f with the type in which numbers that are computed with as T are stored.
template <class T, class F>
decltype(auto) visit_stored(DType dtype, F&& f) {
  if constexpr (std::same_as<T, float>) {
    if (dtype == DType::f16) return f(TypeTag<Half>());
    if (dtype == DType::bf16) return f(TypeTag<BFloat16>());
  }
  return f(TypeTag<T>());
}

// Asks for rows of one head ahead of their use: short and far apart, they escape the processor's own prefetching.
template <bool to_write>
void prefetch_rows(const std::byte* rows, std::int64_t stride, std::int64_t count, std::int64_t bytes) {
  for (std::int64_t i = 0; i < count; ++i, rows += stride)
    for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(rows + at, to_write);
}

// A tensor as it is stored.
struct Stored {
  const std::byte* data;
  DType dtype;
  explicit Stored(const Tensor& t) : data(t.raw_data()), dtype(t.dtype()) {}

  void prefetch(std::int64_t at, std::int64_t stride, std::int64_t count, std::int64_t columns) const {
    const std::int64_t size = size_of(dtype);
    prefetch_rows<false>(data + at * size, stride * size, count, columns * size);
  }
  // Rows of `columns` elements as E, `stride` apart from element `at` on: where they lie, or converted into `buffer`.
  template <class E>
  Rows<E> rows(std::int64_t at, std::int64_t stride, std::int64_t count, std::int64_t columns, E* buffer) const {
    const std::byte* from = data + at * size_of(dtype);
    if constexpr (std::same_as<E, BFloat16>) {
      if (at % 2 == 0 && stride % 2 == 0 && columns % 2 == 0) return {reinterpret_cast<const E*>(from), stride};
      const std::int64_t whole = detail::round_up(columns, 2);  // pairs must be whole, and read as one number each
      std::fill_n(buffer, count * whole, E());
      for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(buffer + i * whole, from + i * stride * 2, static_cast<std::size_t>(columns) * sizeof(E));
      return {buffer, whole};
    } else if constexpr (std::same_as<E, float>) {
      if (dtype == DType::f32) return {reinterpret_cast<const E*>(from), stride};
      for (std::int64_t i = 0; i < count; ++i) widen(dtype, from + i * stride * 2, buffer + i * columns, columns);
      return {buffer, columns};
    } else {
      return {reinterpret_cast<const E*>(from), stride};
    }
  }
};

// The sizes of one call, and what its tensors hold.
template <class T>
struct Call {
  const AttentionProblem& problem;
  Stored q, k, v;
  const T* added = nullptr;
  const std::uint8_t* kept = nullptr;
  const std::int32_t* key_lengths = nullptr;
  std::int64_t queries, keys, dim, group;
  std::int64_t width;         // dim in whole vectors
  std::int64_t score_stride;  // one vector more than needed: rows a power of two apart would share cache sets
  T scale;

  Call(const AttentionProblem& p, const Tensor& q_tensor, const Tensor& k_tensor, const Tensor& v_tensor,
       const Tensor& mask)
      : problem(p),
        q(q_tensor),
        k(k_tensor),
        v(v_tensor),
        queries(p.q.length),
        keys(p.k.length),
        dim(p.head_dim),
        group(p.heads / p.kv_heads),
        width(whole_vectors<T>(dim)),
        score_stride(whole_vectors<T>(keys) + kLanes<T>),
        scale(static_cast<T>(p.options.scale)) {
    if (mask && mask.dtype() == DType::u8)
      kept = mask.data<std::uint8_t>();
    else if (mask)
      added = mask.data<T>();
    if (p.options.key_lengths) key_lengths = p.options.key_lengths.data<std::int32_t>();
  }

  std::int64_t mask_offset(std::int64_t b, std::int64_t h) const {
    return b * problem.mask_stride[0] + h * problem.mask_stride[1];
  }
  std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return (b * problem.heads + h) * queries + i;
  }
  Visibility<T> visibility(std::int64_t b, std::int64_t h) const {
    return {.added = added ? added + mask_offset(b, h) : nullptr,
            .kept = kept ? kept + mask_offset(b, h) : nullptr,
            .query_stride = problem.mask_stride[2],
            .key_stride = problem.mask_stride[3],
            .keys = key_lengths ? std::clamp<std::int64_t>(key_lengths[b], 0, keys) : keys,
            .shift = problem.options.causal ? keys - queries + 1 : keys};
  }
  // The most keys that any query of batch b sees.
  std::int64_t reach(std::int64_t b) const { return queries ? visibility(b, 0).limit(queries - 1) : 0; }

  // Elements of packed keys or values, and of a block of rows.
  template <class E>
  std::int64_t packed() const {
    return block<E>(detail::round_up(keys, kTileColumns<E>));
  }
  template <class E>
  std::int64_t block(std::int64_t rows) const {
    return rows * packed_columns<E>(dim);
  }
  std::int64_t grain() const { return kSerialProducts / std::max<std::int64_t>(1, queries * keys * dim) + 1; }

  // Queries (or their dout) times packed transposed keys (or values), cut to what the queries see.
  template <class E>
  void multiply_keys(const Rows<E>& block, std::int64_t first, std::int64_t rows, const Visibility<T>& sees,
                     const Right<E>& transposed, T* products) const {
    product(rows, sees.limit(first + rows - 1), Left<E>{block.data, block.stride}, transposed, products, score_stride,
            false, [&](std::int64_t, std::int64_t last) {
              return Extent{0, dim, whole_vectors<T>(sees.limit(first + last))};
            });
  }

  // What dropout multiplies the weights of one query with: 0 or 1 / (1 - p).
  void dropout_factors(std::int64_t row_index, std::int64_t count, T* factors) const {
    const double p = problem.options.dropout;
    const T kept_factor = static_cast<T>(p < 1 ? 1 / (1 - p) : 0);
    const std::int64_t begin = row_index * keys;
    std::uint32_t bits[kRandomRun];
    for (std::int64_t j = 0; j < count;) {
      const std::int64_t first = (begin + j) / 4 * 4, end = std::min(count, first + kRandomRun - begin);
      random_run(problem.options.dropout_key, first, bits);
      for (; j < end; ++j) factors[j] = uniform_from_bits(bits[begin + j - first]) >= p ? kept_factor : T(0);
    }
  }
};

template <class T>
struct RowSum {
  T sum, largest;
};
// Replaces `count` scores by exp(score - largest) and fills with zeros up to `columns`. Sum 0: no key is visible.
template <class T>
RowSum<T> exponentiate_row(T* scores, std::int64_t count, std::int64_t columns) {
  const std::int64_t whole = whole_vectors<T>(count);
  std::fill(scores + whole, scores + columns, T(0));
  Vec<T> top = simd::splat(kMinusInf<T>);
  for (std::int64_t j = 0; j < whole; j += kLanes<T>) top = simd::max(top, simd::load(scores + j));
  const T largest = simd::max(top);
  if (largest == kMinusInf<T>) {
    std::fill_n(scores, whole, T(0));
    return {T(0), largest};
  }
  Vec<T> total{};
  for (std::int64_t j = 0; j < whole; j += kLanes<T>) {
    const Vec<T> weight = simd::exp(simd::load(scores + j) - largest);
    total += weight;
    simd::store(scores + j, weight);
  }
  return {simd::sum(total), largest};
}

// Where results go: T, or 16 bits that are rounded to once. data is null where nobody wants them.
template <class T>
struct Target {
  std::byte* data = nullptr;
  DType dtype = dtype_of<T>;
  bool add = false;
  explicit Target(Tensor& t) : data(t.mutable_raw_data()), dtype(t.dtype()) {}
  explicit Target(const HeadsGrad& g) : add(g.add) {
    if (!g.grad) return;
    data = g.grad.tensor().mutable_raw_data();
    dtype = g.grad.dtype();
  }
  explicit operator bool() const { return data != nullptr; }

  void prefetch(std::int64_t at, std::int64_t stride, std::int64_t count, std::int64_t columns) const {
    const std::int64_t size = size_of(dtype);
    if (data) prefetch_rows<true>(data + at * size, stride * size, count, columns * size);
  }
  // scale * from (+ what is there), to rows `stride` elements apart from element `at` on.
  void write(std::int64_t rows, std::int64_t columns, T scale, const T* from, std::int64_t from_stride, std::int64_t at,
             std::int64_t stride) const {
    visit_stored<T>(dtype, [&]<class S>(TypeTag<S>) {
      S* to = reinterpret_cast<S*>(data) + at;
      for (std::int64_t i = 0; i < rows; ++i, from += from_stride, to += stride) write_row(columns, scale, from, to);
    });
  }

 private:
  void write_row(std::int64_t columns, T scale, const T* from, T* to) const {
    if (add)
      for (std::int64_t j = 0; j < columns; ++j) to[j] += scale * from[j];
    else
      for (std::int64_t j = 0; j < columns; ++j) to[j] = scale * from[j];
  }
  template <simd::SixteenBit H>
  void write_row(std::int64_t columns, T scale, const T* from, H* to) const {
    for (std::int64_t j = 0; j < columns; j += kLanes<T>) {
      const std::int64_t count = std::min<std::int64_t>(kLanes<T>, columns - j);
      const Vec<T> sum = scale * simd::load_partial(from + j, count);
      simd::store_narrow_partial(to + j, add ? sum + simd::load_wide_partial(to + j, count) : sum, count);
    }
  }
};

// From the scores and dout v^T (in dscores) of one query: the weights that multiply the values, and dS.
// `factors` are those of dropout, or null.
template <class T>
void differentiate_row(T lse, T delta, const T* factors, std::int64_t count, std::int64_t columns, T* weights,
                       T* dscores) {
  const std::int64_t whole = whole_vectors<T>(count);
  for (std::int64_t j = 0; j < whole; j += kLanes<T>) {
    const Vec<T> score = simd::load(weights + j);
    const auto hidden = score == kMinusInf<T>;
    const Vec<T> weight = simd::exp(score - lse);
    const Vec<T> factor = factors ? simd::load(factors + j) : simd::splat(T(1));
    const Vec<T> dscore = weight * (simd::load(dscores + j) * factor - delta);
    simd::store(weights + j, simd::select(hidden, T(0), weight * factor));
    simd::store(dscores + j, simd::select(hidden, T(0), dscore));
  }
  std::fill(weights + whole, weights + columns, T(0));
  std::fill(dscores + whole, dscores + columns, T(0));
}

}  // namespace tapestry::cpu::attn
