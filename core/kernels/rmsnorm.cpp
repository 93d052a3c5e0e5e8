// One pass for the mean square, one for the result; backward likewise. Both leave the row in the first-level cache
// between the passes.
#include "core/kernels/rmsnorm.h"

#include <optional>

#include "core/kernels/mixed.h"
#include "core/kernels/norm_rows.h"

namespace tapestry::cpu {

using simd::load_partial, simd::store_partial;

void rmsnorm_forward(const Tensor& x, const Tensor& weight, double eps, Tensor& y, Tensor& rrms) {
  visit_float("rmsnorm", accumulate_dtype(x.dtype()), [&]<class T>(TypeTag<T>) {
    const Tensor w = widened(weight);
    const T* pw = w.data<T>();
    T* prrms = rrms.mutable_data<T>();
    const std::int64_t n = x.shape().back();
    const Source<T> input(x);
    const Target<T> output(y);
    parallel_rows(x.shape().rows(), n, [=](std::int64_t row) {
      const RowBuffers<T> buffer(input.narrow() || output.narrow(), 1, n);
      T* to = output.open(row * n, n, false, buffer[0]);
      const T* from = input.read(row * n, n, buffer[0]);  // the same buffer: an element is read before it is written
      const T squares = row_sum<T>(n, [=](std::int64_t i, auto count) {
        const auto v = load_partial(from + i, count);
        return v * v;
      });
      const T scale = 1 / std::sqrt(squares / static_cast<T>(n) + static_cast<T>(eps));
      for_each_vector<T>(n, [=](std::int64_t i, auto count) {
        store_partial(to + i, load_partial(from + i, count) * scale * load_partial(pw + i, count), count);
      });
      output.close(row * n, n, to);
      prrms[row] = scale;
    });
  });
}

void rmsnorm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rrms, Grad dx,
                      Grad dweight) {
  if (!dx && !dweight) return;
  const bool add = dx && dx.claim();
  visit_float("rmsnorm_backward", accumulate_dtype(x.dtype()), [&]<class T>(TypeTag<T>) {
    const Tensor w = widened(weight);
    const T *pw = w.data<T>(), *prrms = rrms.data<T>();
    const Source<T> upstream(dy), input(x);
    const std::optional<Target<T>> target = dx ? std::optional<Target<T>>(dx.tensor()) : std::nullopt;
    const bool mixed = upstream.narrow() || input.narrow() || (target && target->narrow());
    const std::int64_t n = x.shape().back();
    const RowChunks chunks(x.shape().rows());
    Tensor scratch = dweight ? workspace({chunks.count, n}, dtype_of<T>) : Tensor();
    T* partial = dweight ? scratch.mutable_data<T>() : nullptr;

    auto input_gradient = [=](const T* g, const T* v, T scale, T* to) {
      const T dot = row_sum<T>(n, [=](std::int64_t i, auto count) {
        return load_partial(g + i, count) * load_partial(pw + i, count) * (load_partial(v + i, count) * scale);
      });
      const T average = dot / static_cast<T>(n);
      for_each_vector<T>(n, [=](std::int64_t i, auto count) {
        const auto weighted = load_partial(g + i, count) * load_partial(pw + i, count);
        write_vector(to + i, (weighted - load_partial(v + i, count) * scale * average) * scale, count, add);
      });
    };
    parallel_for(chunks.count, grain_for(chunks.each * n), [=](std::int64_t begin, std::int64_t end) {
      const RowBuffers<T> buffer(mixed, 3, n);
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        T* sums = partial ? partial + chunk * n : nullptr;
        if (sums) std::fill_n(sums, n, T(0));
        for (std::int64_t row = chunk * chunks.each; row < chunks.end(chunk); ++row) {
          const T *g = upstream.read(row * n, n, buffer[0]), *v = input.read(row * n, n, buffer[1]);
          if (target) {
            T* to = target->open(row * n, n, add, buffer[2]);
            input_gradient(g, v, prrms[row], to);
            target->close(row * n, n, to);
          }
          if (!sums) continue;
          for_each_vector<T>(n, [=](std::int64_t i, auto count) {
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
