// Channels are spread over threads. With [N, C] the lanes of a vector are neighbouring channels; with [N, C, L...] they
// are neighbours within one channel and are folded at the end of a sum. Everything between works on lanes either way.
#include "core/kernels/batchnorm.h"

#include "core/kernels/norm_rows.h"

namespace tapestry::cpu {

namespace {

using simd::load_partial, simd::store_partial;

struct Extents {
  std::int64_t batch, channels, inner;
  explicit Extents(const Shape& s) : batch(s[0]), channels(s[1]), inner(1) {
    for (int axis = 2; axis < s.rank(); ++axis) inner *= s[axis];
  }
  std::int64_t per_channel() const { return batch * inner; }
};

// The channels that one vector works on: several side by side, or one.
template <class T>
struct Group {
  Extents e;
  std::int64_t first;
  bool side_by_side;  // inner == 1
  std::int64_t lanes;

  static std::int64_t width(const Extents& e) { return e.inner == 1 ? simd::kLanes<T> : 1; }
  Group(const Extents& extents, std::int64_t index)
      : e(extents),
        first(index * width(e)),
        side_by_side(e.inner == 1),
        lanes(std::min(width(e), e.channels - first)) {}

  // f(offset, count) for each vector of the group's elements.
  template <class F>
  void walk(F&& f) const {
    for (std::int64_t n = 0; n < e.batch; ++n) {
      const std::int64_t offset = (n * e.channels + first) * e.inner;
      if (side_by_side)
        f(offset, lanes);
      else
        for_each_vector<T>(e.inner, [&](std::int64_t i, auto count) { f(offset + i, count); });
    }
  }
  // Of k sums over walk(); lanes past the end must hold 0 unless side by side.
  template <std::size_t k, class F>
  Vectors<T, k> sums(F&& f) const {
    Vectors<T, k> total{};
    walk([&](std::int64_t offset, auto count) {
      const Vectors<T, k> v = f(offset, count);
      for (std::size_t j = 0; j < k; ++j) total[j] += v[j];
    });
    if (!side_by_side)
      for (auto& t : total) t = simd::splat(simd::sum(t));
    return total;
  }
  simd::Vec<T> load(const T* channel_values) const {
    return side_by_side ? load_partial(channel_values + first, lanes) : simd::splat(channel_values[first]);
  }
  void store(T* channel_values, simd::Vec<T> v) const { store_partial(channel_values + first, v, lanes); }
  void write(T* channel_values, simd::Vec<T> v, bool add) const { write_vector(channel_values + first, v, lanes, add); }
};

template <class T, class Body>
void for_each_group(const Extents& e, Body&& body) {
  const std::int64_t width = Group<T>::width(e);
  parallel_for((e.channels + width - 1) / width, grain_for(e.per_channel() * width),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t index = begin; index < end; ++index) body(Group<T>(e, index));
               });
}

// The mean is kept in two parts, see norm_rows.h.
template <class T>
struct Statistics {
  simd::Vec<T> mean, rest, variance;
};

template <class T>
Statistics<T> batch_statistics(const Group<T>& group, const T* x) {
  const T count = static_cast<T>(std::max<std::int64_t>(group.e.per_channel(), 1));
  const auto mean =
      group.template sums<1>([x](std::int64_t i, auto n) { return Vectors<T, 1>{load_partial(x + i, n)}; })[0] / count;
  const auto sums = group.template sums<2>([x, mean](std::int64_t i, auto n) {
    const auto d = load_partial(x + i, n, mean[0]) - mean;
    return Vectors<T, 2>{d, d * d};
  });
  const auto rest = sums[0] / count;
  return {mean, rest, simd::max(sums[1] / count - rest * rest, simd::Vec<T>{})};
}

}  // namespace

void batchnorm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool training,
                       double momentum, Tensor& running_mean, Tensor& running_var, Tensor& y, Tensor& mean,
                       Tensor& rstd) {
  const Extents e(x.shape());
  const bool update = training && e.per_channel() > 0;
  visit_float("batchnorm", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *px = x.data<T>(), *pw = weight.data<T>(), *pb = bias.data<T>();
    const T *old_mean = running_mean.data<T>(), *old_var = running_var.data<T>();
    // Asked for only when written: it raises the version of the buffers.
    T* new_mean = update ? running_mean.mutable_data<T>() : nullptr;
    T* new_var = update ? running_var.mutable_data<T>() : nullptr;
    T *py = y.mutable_data<T>(), *pmean = mean.mutable_data<T>(), *prstd = rstd.mutable_data<T>();
    const T part = static_cast<T>(momentum), count = static_cast<T>(e.per_channel());
    for_each_group<T>(e, [=](const Group<T>& group) {
      const Statistics<T> s = training ? batch_statistics(group, px)
                                       : Statistics<T>{group.load(old_mean), simd::Vec<T>{}, group.load(old_var)};
      if (update) {
        const auto unbiased = s.variance * (count / (count - 1));
        group.store(new_mean, group.load(old_mean) * (1 - part) + (s.mean + s.rest) * part);
        group.store(new_var, group.load(old_var) * (1 - part) + unbiased * part);
      }
      const auto scale = T(1) / simd::sqrt(s.variance + static_cast<T>(eps));
      const auto w = group.load(pw), b = group.load(pb);
      group.walk([=](std::int64_t i, auto n) {
        store_partial(py + i, ((load_partial(px + i, n) - s.mean) - s.rest) * scale * w + b, n);
      });
      group.store(pmean, s.mean + s.rest);
      group.store(prstd, scale);
    });
  });
}

void batchnorm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                        bool training, Grad dx, Grad dweight, Grad dbias) {
  const Extents e(x.shape());
  const bool add_dx = dx && dx.claim(), add_dweight = dweight && dweight.claim(), add_dbias = dbias && dbias.claim();
  visit_float("batchnorm_backward", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pdy = dy.data<T>(), *px = x.data<T>(), *pw = weight.data<T>();
    const T *pmean = mean.data<T>(), *prstd = rstd.data<T>();
    T *pdx = dx ? dx.data<T>() : nullptr, *pdweight = dweight ? dweight.data<T>() : nullptr;
    T* pdbias = dbias ? dbias.data<T>() : nullptr;
    const T count = static_cast<T>(std::max<std::int64_t>(e.per_channel(), 1));
    for_each_group<T>(e, [=](const Group<T>& group) {
      const auto center = group.load(pmean), scale = group.load(prstd);
      const auto sums = group.template sums<3>([=](std::int64_t i, auto n) {
        const auto d = (load_partial(px + i, n, center[0]) - center) * scale;
        const auto g = load_partial(pdy + i, n);
        return Vectors<T, 3>{d, g, g * d};
      });
      const auto rest = training ? sums[0] / count : simd::Vec<T>{};
      const auto gx_sum = sums[2] - rest * sums[1];
      if (pdweight) group.write(pdweight, gx_sum, add_dweight);
      if (pdbias) group.write(pdbias, sums[1], add_dbias);
      if (!pdx) return;
      const auto factor = group.load(pw) * scale;
      if (!training)
        return group.walk(
            [=](std::int64_t i, auto n) { write_vector(pdx + i, load_partial(pdy + i, n) * factor, n, add_dx); });
      const auto g_average = sums[1] / count, gx_average = gx_sum / count;
      group.walk([=](std::int64_t i, auto n) {
        const auto xhat = (load_partial(px + i, n) - center) * scale - rest;
        write_vector(pdx + i, ((load_partial(pdy + i, n) - g_average) - xhat * gx_average) * factor, n, add_dx);
      });
    });
  });
}

}  // namespace tapestry::cpu
