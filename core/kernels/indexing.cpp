// Gathering is spread over the rows (o, i) of what is written. Scattering gives each thread some of the lines (o, block
// of c) and walks i in order there, so sums of equal indices do not depend on threads. Nothing is saved but the index.
#include "core/kernels/indexing.h"

#include "core/kernels/ids.h"
#include "core/kernels/rows.h"

namespace tapestry::cpu {
namespace {

// Where the index of element (o, i, c) lies: o * outer + i * row + c * column.
struct Index {
  Ids ids;
  std::int64_t outer, row, column;
  Index(const char* op, const Tensor& index, const IndexLayout& l)
      : ids(op, "index", index),
        outer(l.per_element ? l.m * l.inner : 0),
        row(l.per_element ? l.inner : 1),
        column(l.per_element ? 1 : 0) {
    const std::int64_t count = l.per_element ? l.outer * l.m * l.inner : l.m;
    TAP_CHECK(index.numel() == count, op, ": the index must have ", count, " elements, not ", index.shape());
    for (std::int64_t i = 0; i < count; ++i)
      TAP_CHECK(ids[i] >= 0 && ids[i] < l.n, op, ": index ", ids[i], " at flat position ", i, " must be in [0, ", l.n,
                ")");
  }
  std::int64_t operator()(std::int64_t o, std::int64_t i, std::int64_t c) const {
    return ids[o * outer + i * row + c * column];
  }
};

// y = or += the gathered elements of x.
template <bool kAdd, class E>
void gather(const E* x, const Index& index, const IndexLayout& l, E* y) {
  parallel_rows(l.outer * l.m, l.inner, [&](std::int64_t at) {
    const std::int64_t o = at / l.m, i = at % l.m;
    const E* from = x + o * l.n * l.inner;
    E* to = y + at * l.inner;
    const auto put = [](E& target, E value) {
      if constexpr (kAdd)
        target += value;
      else
        target = value;
    };
    if (l.per_element) {
      for (std::int64_t c = 0; c < l.inner; ++c) put(to[c], from[index(o, i, c) * l.inner + c]);
    } else {
      const E* chosen = from + index(o, i, 0) * l.inner;
      for (std::int64_t c = 0; c < l.inner; ++c) put(to[c], chosen[c]);
    }
  });
}

// x += the scattered elements of y; with `clear` x starts from 0.
template <class T>
void scatter(const T* y, const Index& index, const IndexLayout& l, T* x, bool clear) {
  constexpr std::int64_t kBlock = 64 / sizeof(T);  // a cache line of columns
  const std::int64_t blocks = (l.inner + kBlock - 1) / kBlock;
  parallel_for(l.outer * blocks, grain_for((l.m + (clear ? l.n : 0)) * std::min(kBlock, l.inner)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t line = begin; line < end; ++line) {
                   const std::int64_t o = line / blocks, first = line % blocks * kBlock;
                   const std::int64_t last = std::min(first + kBlock, l.inner);
                   T* to = x + o * l.n * l.inner;
                   const T* from = y + o * l.m * l.inner;
                   if (clear)
                     for (std::int64_t j = 0; j < l.n; ++j)
                       std::fill(to + j * l.inner + first, to + j * l.inner + last, T(0));
                   for (std::int64_t i = 0; i < l.m; ++i) {
                     const T* row = from + i * l.inner;
                     if (l.per_element) {
                       for (std::int64_t c = first; c < last; ++c) to[index(o, i, c) * l.inner + c] += row[c];
                     } else {
                       T* chosen = to + index(o, i, 0) * l.inner;
                       for (std::int64_t c = first; c < last; ++c) chosen[c] += row[c];
                     }
                   }
                 }
               });
}

template <class E>
void gather_bytes(const Tensor& x, const Index& index, const IndexLayout& layout, Tensor& y) {
  gather<false>(reinterpret_cast<const E*>(x.raw_data()), index, layout, reinterpret_cast<E*>(y.mutable_raw_data()));
}

}  // namespace

void gather_forward(const char* op, const Tensor& x, const Tensor& index, const IndexLayout& layout, Tensor& y) {
  const Index at(op, index, layout);
  switch (size_of(x.dtype())) {
    case 1:
      return gather_bytes<std::uint8_t>(x, at, layout, y);
    case 2:
      return gather_bytes<std::uint16_t>(x, at, layout, y);
    case 4:
      return gather_bytes<std::uint32_t>(x, at, layout, y);
    default:
      return gather_bytes<std::uint64_t>(x, at, layout, y);
  }
}

void gather_backward(const char* op, const Tensor& dy, const Tensor& index, const IndexLayout& layout, Grad dx) {
  if (!dx) return;
  const Index at(op, index, layout);
  const bool add = dx.claim();
  visit_float(op, dy.dtype(), [&]<class T>(TypeTag<T>) { scatter(dy.data<T>(), at, layout, dx.data<T>(), !add); });
}

void scatter_add_forward(const char* op, const Tensor& source, const Tensor& index, const IndexLayout& layout,
                         Tensor& target) {
  const Index at(op, index, layout);
  visit_float(op, source.dtype(),
              [&]<class T>(TypeTag<T>) { scatter(source.data<T>(), at, layout, target.mutable_data<T>(), false); });
}

void scatter_add_backward(const char* op, const Tensor& dy, const Tensor& index, const IndexLayout& layout,
                          Grad dsource) {
  if (!dsource) return;
  const Index at(op, index, layout);
  const bool add = dsource.claim();
  visit_float(op, dy.dtype(), [&]<class T>(TypeTag<T>) {
    if (add)
      gather<true>(dy.data<T>(), at, layout, dsource.data<T>());
    else
      gather<false>(dy.data<T>(), at, layout, dsource.data<T>());
  });
}

void one_hot(const Tensor& ids, Tensor& y) {
  const std::int64_t count = ids.numel(), classes = y.shape().back();
  const Index id("one_hot", ids, {.n = classes, .m = count});
  y.fill(0);
  visit_float("one_hot", y.dtype(), [&]<class T>(TypeTag<T>) {
    T* to = y.mutable_data<T>();
    for (std::int64_t i = 0; i < count; ++i) to[i * classes + id(0, i, 0)] = 1;
  });
}

}  // namespace tapestry::cpu
