// A rounded mean is off by up to half a unit in its last place, which shows where the mean is large against the spread.
// Deviations d = x - mean are nearly exact, so their average, `rest`, is what the mean lacks:
// var = avg(d^2) - rest^2, xhat = (d - rest) * rstd (Chan, Golub & LeVeque 1983). Backward finds rest again from x and
// the saved mean. Weight gradients are summed in chunks of rows, then over the chunks; both orders follow from the
// shape alone.
#include "core/kernels/layernorm.h"

#include <cmath>

#include "core/kernels/rows.h"

namespace tapestry::cpu {

namespace {

constexpr std::int64_t kMaxChunks = 64, kMinChunkRows = 16;

using simd::load_partial, simd::store_partial;

template <class T>
void forward_row(const T* x, const T* weight, const T* bias, T eps, T* y, std::int64_t n, T& saved_mean,
                 T& saved_rstd) {
  const T width = static_cast<T>(n);
  const T mean = row_sum<T>(n, [=](std::int64_t i, auto count) { return load_partial(x + i, count); }) / width;
  const auto [d_sum, d2_sum] = row_sums<T, 2>(n, [=](std::int64_t i, auto count) {
    const auto d = load_partial(x + i, count, mean) - mean;
    return Vectors<T, 2>{d, d * d};
  });
  const T rest = d_sum / width;
  const T variance = std::max(d2_sum / width - rest * rest, T(0));
  const T rstd = 1 / std::sqrt(variance + eps);
  for_each_vector<T>(n, [=](std::int64_t i, auto count) {
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

  // rest * rstd, avg(g) and avg(g xhat) with g = dy * weight.
  std::array<T, 3> averages() const {
    const auto [d_sum, g_sum, gd_sum] = row_sums<T, 3>(n, [this](std::int64_t i, auto count) {
      const auto d = (load_partial(x + i, count, mean) - mean) * rstd;
      const auto g = load_partial(dy + i, count) * load_partial(weight + i, count);
      return Vectors<T, 3>{d, g, g * d};
    });
    const T width = static_cast<T>(n), rest = d_sum / width;
    return {rest, g_sum / width, (gd_sum - rest * g_sum) / width};
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

// target = or += the sum of `chunks` vectors that lie `stride` apart.
template <class T>
void sum_chunks(const T* partial, std::int64_t chunks, std::int64_t stride, std::int64_t n, const Grad& target) {
  const bool add = target.claim();
  T* out = target.data<T>();
  constexpr std::int64_t kBlock = 64;
  parallel_for((n + kBlock - 1) / kBlock, grain_for(chunks * kBlock), [=](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kBlock, columns = std::min(end * kBlock, n) - first;
    for_each_vector<T>(columns, [=](std::int64_t i, auto count) {
      simd::Vec<T> total{};
      for (std::int64_t c = 0; c < chunks; ++c) total += load_partial(partial + c * stride + first + i, count);
      write_vector(out + first + i, total, count, add);
    });
  });
}

}  // namespace

void layernorm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& y, Tensor& mean,
                       Tensor& rstd) {
  visit_float("layernorm", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *px = x.data<T>(), *pw = weight.data<T>(), *pb = bias.data<T>();
    T *py = y.mutable_data<T>(), *pmean = mean.mutable_data<T>(), *prstd = rstd.mutable_data<T>();
    const std::int64_t n = x.shape().back();
    parallel_rows(x.shape().rows(), n, [=](std::int64_t row) {
      forward_row(px + row * n, pw, pb, static_cast<T>(eps), py + row * n, n, pmean[row], prstd[row]);
    });
  });
}

void layernorm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                        Grad dx, Grad dweight, Grad dbias) {
  const bool columns = dweight || dbias;
  if (!dx && !columns) return;
  const bool add = dx && dx.claim();
  visit_float("layernorm_backward", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pdy = dy.data<T>(), *px = x.data<T>(), *pw = weight.data<T>();
    const T *pmean = mean.data<T>(), *prstd = rstd.data<T>();
    T* pdx = dx ? dx.data<T>() : nullptr;
    const std::int64_t rows = x.shape().rows(), n = x.shape().back();
    const std::int64_t chunk_rows = std::max(kMinChunkRows, (rows + kMaxChunks - 1) / kMaxChunks);
    const std::int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    Tensor scratch = columns ? workspace({chunks, 2, n}, x.dtype()) : Tensor();
    T* partial = columns ? scratch.mutable_data<T>() : nullptr;

    parallel_for(chunks, grain_for(chunk_rows * n), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        T* sums = columns ? partial + chunk * 2 * n : nullptr;
        if (columns) std::fill_n(sums, 2 * n, T(0));
        for (std::int64_t row = chunk * chunk_rows; row < std::min((chunk + 1) * chunk_rows, rows); ++row) {
          const Row<T> r{pdy + row * n, px + row * n, pw, n, pmean[row], prstd[row]};
          const auto averages = r.averages();
          if (pdx) input_gradient(r, averages, pdx + row * n, add);
          if (columns) add_columns(r, averages[0], sums, sums + n);
        }
      }
    });
    if (dweight) sum_chunks(partial, chunks, 2 * n, n, dweight);
    if (dbias) sum_chunks(partial + n, chunks, 2 * n, n, dbias);
  });
}

}  // namespace tapestry::cpu
