// Cross-entropy against distributions: as with class indices (see cross_entropy.h), but the factors a_c of a row come
// from its targets. Every row counts.
#include "core/kernels/cross_entropy_rows.h"

namespace tapestry::cpu {

namespace {

// a(i, count) = w_c ((1 - s) q_c + s / V) scale of a row whose targets start at q.
template <class T>
auto target_factors(const CrossEntropyTerms<T>& terms, const T* q, T scale) {
  return [=](std::int64_t i, auto count) {
    return terms.weight(i, count) * (terms.keep * simd::load_partial(q + i, count) + terms.spread) * scale;
  };
}

}  // namespace

void soft_cross_entropy_forward(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options,
                                Tensor& loss, Tensor& row_stats) {
  const std::int64_t rows = logits.shape().rows(), n = logits.shape().back();
  const double scale = share_of(1, static_cast<double>(rows)), z_loss = options.z_loss;
  Tensor row_loss = workspace({rows}, DType::f64);
  double* losses = row_loss.mutable_data<double>();
  visit_float("soft_cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    const T *z = logits.data<T>(), *q = targets.data<T>();
    T* stats = row_stats.mutable_data<T>();
    const CrossEntropyTerms<T> terms(options, n);
    parallel_rows(rows, n, [=](std::int64_t row) {
      T* stat = stats + 2 * row;
      write_row_stats(z + row * n, n, stat);
      double row_total = spread_loss(z + row * n, n, stat, target_factors(terms, q + row * n, T(1)));
      const double lse = static_cast<double>(stat[0]) + stat[1];
      if (z_loss != 0) row_total += z_loss * lse * lse;
      losses[row] = row_total * scale;
    });
    *loss.mutable_data<T>() = static_cast<T>(sum_of(losses, rows));
  });
}

void soft_cross_entropy_backward(const Tensor& dloss, const Tensor& logits, const Tensor& targets,
                                 const CrossEntropyOptions& options, const Tensor& row_stats, Grad dlogits,
                                 Grad dtargets) {
  const std::int64_t rows = logits.shape().rows(), n = logits.shape().back();
  const bool add = dlogits && dlogits.claim(), add_target = dtargets && dtargets.claim();
  visit_float("soft_cross_entropy_backward", logits.dtype(), [&]<class T>(TypeTag<T>) {
    const T *z = logits.data<T>(), *q = targets.data<T>(), *stats = row_stats.data<T>();
    T* dz = dlogits ? dlogits.data<T>() : nullptr;
    T* dq = dtargets ? dtargets.data<T>() : nullptr;
    const CrossEntropyTerms<T> terms(options, n);
    const T scale = static_cast<T>(share_of(*dloss.data<T>(), static_cast<double>(rows)));
    const T z_scale = static_cast<T>(2 * options.z_loss) * scale;
    parallel_rows(rows, n, [=](std::int64_t row) {
      const T *z_row = z + row * n, *stat = stats + 2 * row;
      const T log_total = stat[0], shift = stat[1];
      if (dz) {
        const auto a = target_factors(terms, q + row * n, scale);
        T total = row_sum<T>(n, a);
        if (z_scale != 0) total += z_scale * (log_total + shift);
        logits_gradient(z_row, n, stat, total, a, dz + row * n, add);
      }
      if (dq)
        for_each_vector<T>(n, [=](std::int64_t i, auto count) {
          const auto factor = terms.weight(i, count) * (terms.keep * scale);
          const auto l = log_total + (shift - simd::load_partial(z_row + i, count, shift));
          write_vector(dq + row * n + i, simd::select(factor == T(0), T(0), factor * l), count, add_target);
        });
    });
  });
}

}  // namespace tapestry::cpu
