// Gathering is spread over the rows (o, i) of what is written. Scattering gives each thread some of the lines (o, block
// of c) and walks i in order there, so sums of equal indices do not depend on threads. Nothing is saved but the index.
#include "core/kernels/indexing.h"

#include "core/kernels/ids.h"
#include "core/kernels/rows.h"
#include "core/kernels/strided_walk.h"

namespace tapestry::cpu {
namespace {

class Index {
 public:
  Index(const char* op, const Tensor& index, const IndexLayout& l)
      : ids_(op, "index", index),
        outer_(l.per_element ? l.m * l.inner : 0),
        row_(l.per_element ? l.inner : 1),
        column_(l.per_element ? 1 : 0),
        line_(l.inner),
        slab_(l.n * l.inner),
        step_(l.partial() ? l.x.strides()[l.axis] : l.inner) {
    const std::int64_t count = l.per_element ? l.outer * l.m * l.inner : l.m;
    TAP_CHECK(index.numel() == count, op, ": the index must have ", count, " elements, not ", index.shape());
    for (std::int64_t i = 0; i < count; ++i)
      TAP_CHECK(ids_[i] >= 0 && ids_[i] < l.n, op, ": index ", ids_[i], " at flat position ", i, " must be in [0, ",
                l.n, ")");
    if (l.partial()) list_starts(l);
  }
  // The index of element (o, i, c), and where in x it points.
  std::int64_t operator()(std::int64_t o, std::int64_t i, std::int64_t c) const {
    return ids_[o * outer_ + i * row_ + c * column_];
  }
  std::int64_t place(std::int64_t o, std::int64_t i, std::int64_t c) const {
    return (starts_ ? starts_[o * line_ + c] : o * slab_ + c) + (*this)(o, i, c) * step_;
  }

 private:
  // Where in x index 0 of each (o, c) points.
  void list_starts(const IndexLayout& l) {
    table_ = workspace(l.covered, DType::i64);
    std::int64_t* start = table_.mutable_data<std::int64_t>();
    starts_ = start;
    const StridedWalk<1> walk(l.covered, {l.x.strides()});
    RowCursor<1> row(walk, 0);
    for (std::int64_t r = 0; r < walk.rows(); ++r, row.next())
      for (std::int64_t i = 0; i < walk.inner(); ++i) *start++ = row.offset(0) + i * walk.inner_stride(0);
  }

  Ids ids_;
  std::int64_t outer_, row_, column_, line_, slab_, step_;
  Tensor table_;
  const std::int64_t* starts_ = nullptr;
};

// y = or += the gathered elements of x.
template <bool kAdd, class E>
void gather(const E* x, const Index& index, const IndexLayout& l, E* y) {
  parallel_rows(l.outer * l.m, l.inner, [&](std::int64_t at) {
    const std::int64_t o = at / l.m, i = at % l.m;
    E* to = y + at * l.inner;
    const auto put = [](E& target, E value) {
      if constexpr (kAdd)
        target += value;
      else
        target = value;
    };
    if (l.per_element) {
      for (std::int64_t c = 0; c < l.inner; ++c) put(to[c], x[index.place(o, i, c)]);
    } else {
      const E* chosen = x + index.place(o, i, 0);
      for (std::int64_t c = 0; c < l.inner; ++c) put(to[c], chosen[c]);
    }
  });
}

// x += the scattered elements of y; with `clear` x, of which all is covered, starts from 0.
template <class T>
void scatter(const T* y, const Index& index, const IndexLayout& l, T* x, bool clear) {
  constexpr std::int64_t kBlock = 64 / sizeof(T);  // a cache line of columns
  const std::int64_t blocks = (l.inner + kBlock - 1) / kBlock;
  parallel_for(l.outer * blocks, grain_for((l.m + (clear ? l.n : 0)) * std::min(kBlock, l.inner)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t line = begin; line < end; ++line) {
                   const std::int64_t o = line / blocks, first = line % blocks * kBlock;
                   const std::int64_t last = std::min(first + kBlock, l.inner);
                   const T* from = y + o * l.m * l.inner;
                   if (clear)
                     for (std::int64_t j = 0; j < l.n; ++j) {
                       T* slab = x + (o * l.n + j) * l.inner;
                       std::fill(slab + first, slab + last, T(0));
                     }
                   for (std::int64_t i = 0; i < l.m; ++i) {
                     const T* row = from + i * l.inner;
                     if (l.per_element) {
                       for (std::int64_t c = first; c < last; ++c) x[index.place(o, i, c)] += row[c];
                     } else {
                       T* chosen = x + index.place(o, i, 0);
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
  const bool clear = !dx.claim();
  if (clear && layout.partial()) dx.tensor().fill(0);
  visit_float(op, dy.dtype(), [&]<class T>(TypeTag<T>) {
    scatter(dy.data<T>(), at, layout, dx.data<T>(), clear && !layout.partial());
  });
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
