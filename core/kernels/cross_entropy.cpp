// Forward reads each row twice, for its maximum and for the sum of exp(z - max); backward reads it once. The loss is
// added up in double, in row order. With 0 counted rows the loss is 0 and every gradient row an exact zero.
#include "core/kernels/cross_entropy.h"

#include <cmath>

#include "core/kernels/ids.h"
#include "core/kernels/rows.h"

namespace tapestry::cpu {

namespace {

std::int64_t check_and_count(const Ids& targets, std::int64_t rows, std::int64_t classes, std::int64_t ignore_index) {
  std::int64_t valid = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t target = targets[i];
    if (target == ignore_index) continue;
    TAP_CHECK(target >= 0 && target < classes, "cross_entropy: target ", target, " at flat position ", i,
              " must be in [0, ", classes, ") or equal ignore_index ", ignore_index,
              "; give logits a column for every class, or mark the position as ignored");
    ++valid;
  }
  return valid;
}

// dz = (softmax(z) - onehot(target)) * scale for one row.
template <class T>
void logits_gradient(const T* z, std::int64_t n, const T* stats, std::int64_t target, T scale, T* dz, bool add) {
  const T log_total = stats[0], shift = stats[1];
  for_each_vector<T>(n, [=](std::int64_t i, auto count) {
    const auto p = simd::exp((simd::load_partial(z + i, count) - shift) - log_total);
    write_vector(dz + i, p * scale, count, add);
  });
  dz[target] -= scale;
}

}  // namespace

void cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index, Tensor& loss,
                           Tensor& row_stats, std::int64_t& valid_rows) {
  const Ids target("cross_entropy", "targets", targets);
  const std::int64_t rows = logits.shape().rows(), n = logits.shape().back();
  valid_rows = check_and_count(target, rows, n, ignore_index);
  Tensor row_loss = workspace({rows}, DType::f64);
  double* losses = row_loss.mutable_data<double>();

  visit_float("cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    const T* z = logits.data<T>();
    T* stats = row_stats.mutable_data<T>();
    parallel_rows(rows, n, [=](std::int64_t row) {
      T* row_stat = stats + 2 * row;
      const std::int64_t t = target[row];
      if (t == ignore_index) {
        losses[row] = row_stat[0] = row_stat[1] = 0;
        return;
      }
      const T shift = row_shift(z + row * n, n);
      row_stat[0] = std::log(row_exp_sum(z + row * n, n, shift));
      row_stat[1] = shift;
      losses[row] = row_stat[0] - (z[row * n + t] - row_stat[1]);
    });
    double total = 0;
    for (std::int64_t row = 0; row < rows; ++row) total += losses[row];
    *loss.mutable_data<T>() = static_cast<T>(valid_rows ? total / static_cast<double>(valid_rows) : 0);
  });
}

void cross_entropy_backward(const Tensor& dloss, const Tensor& logits, const Tensor& targets, std::int64_t ignore_index,
                            const Tensor& row_stats, std::int64_t valid_rows, Grad dlogits) {
  if (!dlogits) return;
  const bool add = dlogits.claim();
  const Ids target("cross_entropy_backward", "targets", targets);
  const std::int64_t rows = logits.shape().rows(), n = logits.shape().back();

  visit_float("cross_entropy_backward", logits.dtype(), [&]<class T>(TypeTag<T>) {
    const T *z = logits.data<T>(), *stats = row_stats.data<T>();
    T* dz = dlogits.data<T>();
    const T scale = valid_rows ? *dloss.data<T>() / static_cast<T>(valid_rows) : T(0);
    parallel_rows(rows, n, [=](std::int64_t row) {
      const std::int64_t t = target[row];
      T* dz_row = dz + row * n;
      if (t != ignore_index)
        logits_gradient(z + row * n, n, stats + 2 * row, t, scale, dz_row, add);
      else if (!add)
        std::fill(dz_row, dz_row + n, T(0));
    });
  });
}

}  // namespace tapestry::cpu
