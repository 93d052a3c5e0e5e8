// Backward finds again what the rounded mean lacks (norm_rows.h) from x and the saved mean, and with it std * rstd.
#include "core/kernels/layernorm.h"

#include <optional>

#include "core/kernels/mixed.h"
#include "core/kernels/norm_rows.h"

namespace tapestry::cpu {

namespace {

using simd::load_partial, simd::store_partial;

template <class T>
T inverse_deviation(T variance, std::int64_t n, T eps, LayerNormForm form) {
  if (form == LayerNormForm::variance_plus_eps) return 1 / std::sqrt(variance + eps);
  if (n == 1 || variance == 0) return eps > 0 ? 1 / eps : T(0);
  return 1 / (std::sqrt(variance * static_cast<T>(n) / static_cast<T>(n - 1)) + eps);
}

template <class T>
void forward_row(const T* x, const T* weight, const T* bias, T eps, LayerNormForm form, T* y, std::int64_t n,
                 T& saved_mean, T& saved_rstd) {
  const auto [mean, rest, variance] = row_moments(x, n);
  const T rstd = inverse_deviation(variance, n, eps, form);
  for_each_vector<T>(n, [=, mean = mean, rest = rest](std::int64_t i, auto count) {
    const auto xhat = ((load_partial(x + i, count) - mean) - rest) * rstd;
    store_partial(y + i, xhat * load_partial(weight + i, count) + load_partial(bias + i, count), count);
  });
  saved_mean = mean + rest;
  saved_rstd = rstd;
}

// The pointers of one row and its statistics.
template <class T>
struct Row {
  const T *dy, *x, *weight;
  std::int64_t n;
  T mean, rstd;

  // rest * rstd, avg(g) and k avg(g xhat) with g = dy * weight.
  std::array<T, 3> averages(LayerNormForm form) const {
    const auto [d_sum, g_sum, gd_sum] = row_sums<T, 3>(n, [this](std::int64_t i, auto count) {
      const auto d = (load_partial(x + i, count, mean) - mean) * rstd;
      const auto g = load_partial(dy + i, count) * load_partial(weight + i, count);
      return Vectors<T, 3>{d, g, g * d};
    });
    const T width = static_cast<T>(n), rest = d_sum / width;
    const T gx_average = (gd_sum - rest * g_sum) / width;
    return {rest, g_sum / width, form == LayerNormForm::std_plus_eps ? gx_average * slope(rest) : gx_average};
  }

  // k of the contract's std_plus_eps: n / ((n - 1) std rstd), 0 where std is 0.
  T slope(T rest) const {
    const T squares = row_sum<T>(n, [this, rest](std::int64_t i, auto count) {
      const auto xhat = (load_partial(x + i, count, mean) - mean) * rstd;
      return xhat * xhat;
    });
    const T width = static_cast<T>(n), total = squares - width * rest * rest;
    return n == 1 || total <= 0 ? T(0) : width / std::sqrt((width - 1) * total);
  }
};

template <class T>
void input_gradient(const Row<T>& r, const std::array<T, 3>& averages, T* dx, bool add) {
  const auto [rest, g_average, gx_average] = averages;
  for_each_vector<T>(r.n, [=](std::int64_t i, auto count) {
    const auto xhat = (load_partial(r.x + i, count) - r.mean) * r.rstd - rest;
    const auto g = load_partial(r.dy + i, count) * load_partial(r.weight + i, count);
    write_vector(dx + i, ((g - g_average) - xhat * gx_average) * r.rstd, count, add);
  });
}

// Adds dy xhat and dy of one row to the column sums of its chunk.
template <class T>
void add_columns(const Row<T>& r, T rest, T* dweight, T* dbias) {
  for_each_vector<T>(r.n, [=](std::int64_t i, auto count) {
    const auto xhat = (load_partial(r.x + i, count) - r.mean) * r.rstd - rest;
    const auto dy = load_partial(r.dy + i, count);
    store_partial(dweight + i, load_partial(dweight + i, count) + dy * xhat, count);
    store_partial(dbias + i, load_partial(dbias + i, count) + dy, count);
  });
}

}  // namespace

void layernorm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& y, Tensor& mean,
                       Tensor& rstd, LayerNormForm form) {
  visit_float("layernorm", accumulate_dtype(x.dtype()), [&]<class T>(TypeTag<T>) {
    const Tensor w = widened(weight), b = widened(bias);
    const T *pw = w.data<T>(), *pb = b.data<T>();
    T *pmean = mean.mutable_data<T>(), *prstd = rstd.mutable_data<T>();
    const std::int64_t n = x.shape().back();
    const Source<T> from(x);
    const Target<T> to(y);
    parallel_rows(x.shape().rows(), n, [=](std::int64_t row) {
      const RowBuffers<T> buffer(from.narrow() || to.narrow(), 1, n);
      T* py = to.open(row * n, n, false, buffer[0]);
      // One buffer serves both: an element is read before it is written.
      forward_row(from.read(row * n, n, buffer[0]), pw, pb, static_cast<T>(eps), form, py, n, pmean[row], prstd[row]);
      to.close(row * n, n, py);
    });
  });
}

void layernorm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                        Grad dx, Grad dweight, Grad dbias, LayerNormForm form) {
  const bool columns = dweight || dbias;
  if (!dx && !columns) return;
  const bool add = dx && dx.claim_over(dy);
  visit_float("layernorm_backward", accumulate_dtype(x.dtype()), [&]<class T>(TypeTag<T>) {
    const Tensor w = widened(weight);
    const T *pw = w.data<T>(), *pmean = mean.data<T>(), *prstd = rstd.data<T>();
    const Source<T> upstream(dy), input(x);
    const std::optional<Target<T>> target = dx ? std::optional<Target<T>>(dx.tensor()) : std::nullopt;
    const bool mixed = upstream.narrow() || input.narrow() || (target && target->narrow());
    const std::int64_t rows = x.shape().rows(), n = x.shape().back();
    const RowChunks chunks(rows);
    Tensor scratch = columns ? workspace({chunks.count, 2, n}, dtype_of<T>) : Tensor();
    T* partial = columns ? scratch.mutable_data<T>() : nullptr;

    parallel_for(chunks.count, grain_for(chunks.each * n), [=](std::int64_t begin, std::int64_t end) {
      const RowBuffers<T> buffer(mixed, 3, n);
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        T* sums = columns ? partial + chunk * 2 * n : nullptr;
        if (columns) std::fill_n(sums, 2 * n, T(0));
        for (std::int64_t row = chunk * chunks.each; row < chunks.end(chunk); ++row) {
          const T* pdy = upstream.read(row * n, n, buffer[0]);
          const Row<T> r{pdy, input.read(row * n, n, buffer[1]), pw, n, pmean[row], prstd[row]};
          const auto averages = r.averages(form);
          if (columns) add_columns(r, averages[0], sums, sums + n);
          if (!target) continue;
          T* pdx = target->open(row * n, n, add, buffer[2]);
          input_gradient(r, averages, pdx, add);  // last: it may overwrite dy
          target->close(row * n, n, pdx);
        }
      }
    });
    if (dweight) sum_chunks(partial, chunks.count, 2 * n, n, dweight);
    if (dbias) sum_chunks(partial + n, chunks.count, 2 * n, n, dbias);
  });
}

}  // namespace tapestry::cpu
