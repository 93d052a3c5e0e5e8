// One pass for the mean square, one for the result; backward likewise. Both leave the row in the first-level cache
// between the passes.
#include "core/kernels/rmsnorm.h"

#include "core/kernels/norm_rows.h"

namespace tapestry::cpu {

using simd::load_partial, simd::store_partial;

void rmsnorm_forward(const Tensor& x, const Tensor& weight, double eps, Tensor& y, Tensor& rrms) {
  visit_float("rmsnorm", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *px = x.data<T>(), *pw = weight.data<T>();
    T *py = y.mutable_data<T>(), *prrms = rrms.mutable_data<T>();
    const std::int64_t n = x.shape().back();
    parallel_rows(x.shape().rows(), n, [=](std::int64_t row) {
      const T* from = px + row * n;
      const T squares = row_sum<T>(n, [=](std::int64_t i, auto count) {
        const auto v = load_partial(from + i, count);
        return v * v;
      });
      const T scale = 1 / std::sqrt(squares / static_cast<T>(n) + static_cast<T>(eps));
      for_each_vector<T>(n, [=, to = py + row * n](std::int64_t i, auto count) {
        store_partial(to + i, load_partial(from + i, count) * scale * load_partial(pw + i, count), count);
      });
      prrms[row] = scale;
    });
  });
}

void rmsnorm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rrms, Grad dx,
                      Grad dweight) {
  if (!dx && !dweight) return;
  const bool add = dx && dx.claim();
  visit_float("rmsnorm_backward", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pdy = dy.data<T>(), *px = x.data<T>(), *pw = weight.data<T>(), *prrms = rrms.data<T>();
    T* pdx = dx ? dx.data<T>() : nullptr;
    const std::int64_t n = x.shape().back();
    const RowChunks chunks(x.shape().rows());
    Tensor scratch = dweight ? workspace({chunks.count, n}, x.dtype()) : Tensor();
    T* partial = dweight ? scratch.mutable_data<T>() : nullptr;

    auto input_gradient = [=](std::int64_t row) {
      const T *g = pdy + row * n, *v = px + row * n, scale = prrms[row];
      const T dot = row_sum<T>(n, [=](std::int64_t i, auto count) {
        return load_partial(g + i, count) * load_partial(pw + i, count) * (load_partial(v + i, count) * scale);
      });
      const T average = dot / static_cast<T>(n);
      for_each_vector<T>(n, [=, to = pdx + row * n](std::int64_t i, auto count) {
        const auto weighted = load_partial(g + i, count) * load_partial(pw + i, count);
        write_vector(to + i, (weighted - load_partial(v + i, count) * scale * average) * scale, count, add);
      });
    };
    parallel_for(chunks.count, grain_for(chunks.each * n), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        T* sums = partial ? partial + chunk * n : nullptr;
        if (sums) std::fill_n(sums, n, T(0));
        for (std::int64_t row = chunk * chunks.each; row < chunks.end(chunk); ++row) {
          if (pdx) input_gradient(row);
          if (!sums) continue;
          for_each_vector<T>(n, [=, g = pdy + row * n, v = px + row * n](std::int64_t i, auto count) {
            const auto xhat = load_partial(v + i, count) * prrms[row];
            store_partial(sums + i, load_partial(sums + i, count) + load_partial(g + i, count) * xhat, count);
          });
        }
      }
    });
    if (dweight) sum_chunks(partial, chunks.count, n, n, dweight);
  });
}

}  // namespace tapestry::cpu
