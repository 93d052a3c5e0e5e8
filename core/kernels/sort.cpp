// Elements are sorted together with their indices, which decide between equal ones: so the order is total, and any
// sorting algorithm is stable.
#include "core/kernels/sort.h"

#include <cmath>
#include <vector>

#include "core/kernels/slices.h"

namespace tapestry::cpu {

namespace {

template <class T>
struct Entry {
  T value;
  std::int64_t index;
};

template <class T>
bool larger(T a, T b) {
  return a > b || (std::isnan(a) && !std::isnan(b));
}

}  // namespace

void sort_forward(const Tensor& x, int axis, std::int64_t k, bool descending, Tensor& values, Tensor& indices) {
  visit_float("sort", x.dtype(), [&]<class T>(TypeTag<T>) {
    T* pvalues = values.mutable_data<T>();
    std::int64_t* pindices = indices.mutable_data<std::int64_t>();
    const Slices slices(x.shape(), x.shape().with(axis, 1));
    const std::int64_t inner = x.shape().strides()[axis];
    for_each_slice(slices, x.data<T>(), [=, n = slices.length()](std::int64_t result, const T* row) {
      thread_local std::vector<Entry<T>> entries;
      entries.clear();
      for (std::int64_t i = 0; i < n; ++i) entries.push_back({row[i], i});
      const auto before = [=](const Entry<T>& a, const Entry<T>& b) {
        if (larger(a.value, b.value)) return descending;
        if (larger(b.value, a.value)) return !descending;
        return a.index < b.index;
      };
      if (k == n)
        std::sort(entries.begin(), entries.end(), before);
      else
        std::partial_sort(entries.begin(), entries.begin() + k, entries.end(), before);
      const std::int64_t at = result / inner * k * inner + result % inner;
      for (std::int64_t j = 0; j < k; ++j) {
        pvalues[at + j * inner] = entries[static_cast<std::size_t>(j)].value;
        pindices[at + j * inner] = entries[static_cast<std::size_t>(j)].index;
      }
    });
  });
}

}  // namespace tapestry::cpu
