// Forward reads each row twice, for its maximum and for the sum of exp(z - max), and once more with smoothing; backward
// reads it once. The loss is added up in double, in row order. With nothing counted the loss and all gradients are 0.
#include "core/kernels/cross_entropy.h"

#include "core/kernels/cross_entropy_rows.h"

namespace tapestry::cpu {

void cross_entropy_forward(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options,
                           Tensor& loss, Tensor& row_stats, CrossEntropyCounts& counts) {
  const Ids target("cross_entropy", "targets", targets);
  const std::int64_t rows = logits.shape().rows(), n = logits.shape().back();
  counts = count_targets("cross_entropy", target, rows, n, options);
  const double scale = share_of(1, counts.weight);
  const double z_scale = share_of(options.z_loss, static_cast<double>(counts.rows));
  Tensor row_loss = workspace({rows}, DType::f64);
  double* losses = row_loss.mutable_data<double>();

  visit_float("cross_entropy", accumulate_dtype(logits.dtype()), [&]<class T>(TypeTag<T>) {
    const Source<T> z(logits);
    T* stats = row_stats.mutable_data<T>();
    const CrossEntropyTerms<T> terms(options, n);
    const std::int64_t ignore_index = options.ignore_index;
    parallel_rows(rows, n, [=, &terms](std::int64_t row) {
      T* stat = stats + 2 * row;
      const std::int64_t t = target[row];
      if (t == ignore_index) {
        losses[row] = stat[0] = stat[1] = 0;
        return;
      }
      const T* z_row = z.read(row * n, n, RowBuffers<T>(z.narrow(), 1, n)[0]);
      write_row_stats(z_row, n, stat);
      const T factor = terms.keep * terms.weight(t);
      double row_total = factor * (factor == 0 ? stat[0] : stat[0] - (z_row[t] - stat[1]));
      if (terms.spread > 0)
        row_total += spread_loss(z_row, n, stat,
                                 [=](std::int64_t i, auto count) { return terms.spread * terms.weight(i, count); });
      losses[row] = row_total * scale;
      if (z_scale != 0) {
        const double lse = static_cast<double>(stat[0]) + stat[1];
        losses[row] += z_scale * lse * lse;
      }
    });
  });
  loss.fill(sum_of(losses, rows));
}

void cross_entropy_backward(const Tensor& dloss, const Tensor& logits, const Tensor& targets,
                            const CrossEntropyOptions& options, const Tensor& row_stats,
                            const CrossEntropyCounts& counts, Grad dlogits) {
  if (!dlogits) return;
  const bool add = dlogits.claim_over(logits);  // saves a second array of the largest size there is
  const Ids target("cross_entropy_backward", "targets", targets);
  const std::int64_t rows = logits.shape().rows(), n = logits.shape().back();

  const double seed = dloss.item();
  visit_float("cross_entropy_backward", accumulate_dtype(logits.dtype()), [&]<class T>(TypeTag<T>) {
    const Source<T> z(logits);
    const Target<T> dz(dlogits.tensor());
    const bool mixed = z.narrow() || dz.narrow();
    const T* stats = row_stats.data<T>();
    const CrossEntropyTerms<T> terms(options, n);
    const T scale = static_cast<T>(share_of(seed, counts.weight));
    const T z_scale = static_cast<T>(share_of(2 * options.z_loss * seed, static_cast<double>(counts.rows)));
    const T spread = terms.spread * scale;
    const T spread_total =
        terms.spread > 0 ? spread * row_sum<T>(n, [=](std::int64_t i, auto count) { return terms.weight(i, count); })
                         : T(0);
    const std::int64_t ignore_index = options.ignore_index;
    parallel_rows(rows, n, [=, &terms](std::int64_t row) {
      const std::int64_t t = target[row];
      if (t == ignore_index && add) return;
      const T* stat = stats + 2 * row;
      const RowBuffers<T> buffer(mixed, 2, n);
      const T* z_row = z.read(row * n, n, buffer[0]);
      T* dz_row = dz.open(row * n, n, add, buffer[1]);
      if (t == ignore_index) {
        std::fill(dz_row, dz_row + n, T(0));
        return dz.close(row * n, n, dz_row);
      }
      const T factor = terms.keep * terms.weight(t) * scale;
      T total = factor + spread_total;
      if (z_scale != 0) total += z_scale * (stat[0] + stat[1]);
      if (terms.spread > 0)
        logits_gradient(
            z_row, n, stat, total, [=](std::int64_t i, auto count) { return spread * terms.weight(i, count); }, dz_row,
            add);
      else
        logits_gradient(
            z_row, n, stat, total, [](std::int64_t, auto) { return simd::Vec<T>{}; }, dz_row, add);
      dz_row[t] -= factor;
      dz.close(row * n, n, dz_row);
    });
  });
}

void nll_forward(const Tensor& log_probs, const Tensor& targets, const CrossEntropyOptions& options, bool mean,
                 Tensor& y, CrossEntropyCounts& counts) {
  const Ids target("nll", "targets", targets);
  const std::int64_t rows = log_probs.shape().rows(), n = log_probs.shape().back();
  counts = count_targets("nll", target, rows, n, options);
  const double scale = mean ? share_of(1, counts.weight) : 1;
  const bool each = y.numel() == rows && !mean;
  Tensor row_loss = workspace({rows}, DType::f64);
  double* losses = row_loss.mutable_data<double>();
  visit_float("nll", log_probs.dtype(), [&]<class T>(TypeTag<T>) {
    const T* l = log_probs.data<T>();
    T* out = y.mutable_data<T>();
    const CrossEntropyTerms<T> terms(options, n);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t t = target[row];
      const double weight = t == options.ignore_index ? 0 : terms.weight(t);
      losses[row] = weight == 0 ? 0 : -weight * l[row * n + t] * scale;
      if (each) out[row] = static_cast<T>(losses[row]);
    }
    if (!each) *out = static_cast<T>(sum_of(losses, rows));
  });
}

void nll_backward(const Tensor& dy, const Tensor& targets, const CrossEntropyOptions& options, bool mean,
                  const CrossEntropyCounts& counts, Grad dlog_probs) {
  if (!dlog_probs) return;
  const bool add = dlog_probs.claim();
  const Ids target("nll_backward", "targets", targets);
  const std::int64_t rows = dlog_probs.shape().rows(), n = dlog_probs.shape().back();
  const double scale = mean ? share_of(1, counts.weight) : 1;
  visit_float("nll_backward", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const T* g = dy.data<T>();
    const std::int64_t step = dy.numel() == 1 ? 0 : 1;
    T* dl = dlog_probs.data<T>();
    const CrossEntropyTerms<T> terms(options, n);
    parallel_rows(rows, n, [=, ignore_index = options.ignore_index](std::int64_t row) {
      if (!add) std::fill_n(dl + row * n, n, T(0));
      const std::int64_t t = target[row];
      if (t == ignore_index || terms.weight(t) == 0) return;
      dl[row * n + t] -= static_cast<T>(terms.weight(t) * scale * g[row * step]);
    });
  });
}

}  // namespace tapestry::cpu
