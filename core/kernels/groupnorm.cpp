// A run is contiguous, so its statistics are those of a row. Backward takes three sums per channel and weights them to
// the averages of the run; per sample they are also the weight gradients, added up over samples afterwards.
#include "core/kernels/groupnorm.h"

#include "core/kernels/norm_rows.h"
#include "core/kernels/reduce.h"

namespace tapestry::cpu {

namespace {

using simd::load_partial, simd::store_partial;

struct Extents {
  std::int64_t batch, channels, inner, groups;
  Extents(const Shape& s, std::int64_t group_count) : batch(s[0]), channels(s[1]), inner(1), groups(group_count) {
    for (int axis = 2; axis < s.rank(); ++axis) inner *= s[axis];
  }
  std::int64_t runs() const { return batch * groups; }
  std::int64_t run_channels() const { return channels / groups; }
  std::int64_t run_size() const { return run_channels() * inner; }
};

// f(offset, count, channel) for each vector of a run; channel(values) is their weights or the like. Without trailing
// axes the lanes are neighbouring channels, otherwise neighbours within one.
template <class T, class F>
void walk(const Extents& e, F&& f) {
  if (e.inner == 1)
    return for_each_vector<T>(e.run_channels(), [&](std::int64_t i, auto count) {
      f(i, count, [=](const T* values) { return load_partial(values + i, count); });
    });
  for (std::int64_t c = 0; c < e.run_channels(); ++c)
    for_each_vector<T>(e.inner, [&](std::int64_t i, auto count) {
      f(c * e.inner + i, count, [=](const T* values) { return simd::splat(values[c]); });
    });
}

// One run and its statistics; `first` is its first channel.
template <class T>
struct Run {
  const T *dy, *x, *weight;
  Extents e;
  std::int64_t first;
  T mean, rstd;

  // Leaves dy xhat and dy of each channel in `dweight` and `dbias`; returns rest * rstd, avg(g) and avg(g xhat).
  std::array<T, 3> averages(T* dweight, T* dbias) const {
    T d_sum = 0, g_sum = 0, gd_sum = 0;
    const T* w = weight + first;
    if (e.inner == 1) {
      const auto sums = row_sums<T, 3>(e.run_channels(), [=, this](std::int64_t i, auto count) {
        const auto d = (load_partial(x + i, count, mean) - mean) * rstd;
        const auto g = load_partial(dy + i, count), gw = g * load_partial(w + i, count);
        store_partial(dbias + i, g, count);
        store_partial(dweight + i, g * d, count);
        return Vectors<T, 3>{d, gw, gw * d};
      });
      d_sum = sums[0], g_sum = sums[1], gd_sum = sums[2];
    }
    for (std::int64_t c = 0; c < e.run_channels() && e.inner != 1; ++c) {
      const T *px = x + c * e.inner, *pdy = dy + c * e.inner;
      const auto sums = row_sums<T, 3>(e.inner, [=, this](std::int64_t i, auto count) {
        const auto d = (load_partial(px + i, count, mean) - mean) * rstd;
        const auto g = load_partial(pdy + i, count);
        return Vectors<T, 3>{d, g, g * d};
      });
      d_sum += sums[0];
      g_sum += w[c] * sums[1];
      gd_sum += w[c] * sums[2];
      dbias[c] = sums[1];
      dweight[c] = sums[2];
    }
    const T size = static_cast<T>(std::max<std::int64_t>(e.run_size(), 1)), rest = d_sum / size;
    for (std::int64_t c = 0; c < e.run_channels(); ++c) dweight[c] -= rest * dbias[c];
    return {rest, g_sum / size, (gd_sum - rest * g_sum) / size};
  }

  void input_gradient(const std::array<T, 3>& averages, T* dx, bool add) const {
    walk<T>(e, [=, this, rest = averages[0], g_average = averages[1], gx_average = averages[2]](
                   std::int64_t i, auto count, auto channel) {
      const auto xhat = (load_partial(x + i, count) - mean) * rstd - rest;
      const auto g = load_partial(dy + i, count) * channel(weight + first);
      write_vector(dx + i, ((g - g_average) - xhat * gx_average) * rstd, count, add);
    });
  }
};

}  // namespace

void groupnorm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t groups, double eps,
                       Tensor& y, Tensor& mean, Tensor& rstd) {
  const Extents e(x.shape(), groups);
  visit_float("groupnorm", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *px = x.data<T>(), *pw = weight.data<T>(), *pb = bias.data<T>();
    T *py = y.mutable_data<T>(), *pmean = mean.mutable_data<T>(), *prstd = rstd.mutable_data<T>();
    parallel_rows(e.runs(), e.run_size(), [=](std::int64_t run) {
      const T* from = px + run * e.run_size();
      const Moments<T> m = row_moments(from, e.run_size());
      const T scale = 1 / std::sqrt(m.variance + static_cast<T>(eps));
      const std::int64_t first = run % e.groups * e.run_channels();
      walk<T>(e, [=, to = py + run * e.run_size()](std::int64_t i, auto count, auto channel) {
        const auto xhat = ((load_partial(from + i, count) - m.mean) - m.rest) * scale;
        store_partial(to + i, xhat * channel(pw + first) + channel(pb + first), count);
      });
      pmean[run] = m.mean + m.rest;
      prstd[run] = scale;
    });
  });
}

void groupnorm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                        std::int64_t groups, Grad dx, Grad dweight, Grad dbias) {
  if (!dx && !dweight && !dbias) return;
  const Extents e(x.shape(), groups);
  const bool add = dx && dx.claim();
  visit_float("groupnorm_backward", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pdy = dy.data<T>(), *px = x.data<T>(), *pw = weight.data<T>();
    const T *pmean = mean.data<T>(), *prstd = rstd.data<T>();
    T* pdx = dx ? dx.data<T>() : nullptr;
    const std::int64_t channels = e.channels;
    const Shape samples{e.batch, channels}, sum{1, channels};
    Tensor dweights = workspace(samples, x.dtype()), dbiases = workspace(samples, x.dtype());
    T *pdweights = dweights.mutable_data<T>(), *pdbiases = dbiases.mutable_data<T>();
    parallel_rows(e.runs(), e.run_size(), [=](std::int64_t index) {
      const std::int64_t offset = index * e.run_size(), first = index % e.groups * e.run_channels();
      const Run<T> run{pdy + offset, px + offset, pw, e, first, pmean[index], prstd[index]};
      const std::int64_t at = index / e.groups * channels + first;
      const auto averages = run.averages(pdweights + at, pdbiases + at);
      if (pdx) run.input_gradient(averages, pdx + offset, add);
    });
    const auto add_up = [&](const T* of_samples, const Grad& target) {
      if (!target) return;
      const bool onto = target.claim();
      sum_into(of_samples, samples, sum, 1, target.data<T>(), onto);
    };
    add_up(pdweights, dweight);
    add_up(pdbiases, dbias);
  });
}

}  // namespace tapestry::cpu
