// Element i is kept if the upper 24 bits of its random word are at least p * 2^24, which is key.uniform(i) >= p in
// integers. Forward and backward are the same function of (values, p, key); nothing is saved.
#include "core/kernels/dropout.h"

#include <cmath>

#include "core/kernels/mixed.h"
#include "core/kernels/rows.h"

namespace tapestry::cpu {

namespace {

template <class T>
void drop_run(const std::uint32_t* __restrict bits, std::uint32_t threshold, const T* __restrict from, T scale,
              T* __restrict to, std::int64_t n, bool add) {
  const auto kept = [=](std::int64_t i) { return (bits[i] >> 8) >= threshold ? from[i] * scale : T(0); };
  if (add)
    for (std::int64_t i = 0; i < n; ++i) to[i] += kept(i);
  else
    for (std::int64_t i = 0; i < n; ++i) to[i] = kept(i);
}

// to[i] = keep(i) ? from[i] / (1 - p) : 0, or the same added.
template <class T>
void drop(const Tensor& values, double p, RandomKey key, Tensor& result, bool add) {
  const Source<T> from(values);
  const Target<T> to(result);
  const std::int64_t n = values.numel();
  const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
  const T scale = p < 1 ? static_cast<T>(1 / (1 - p)) : T(0);
  parallel_for((n + kRandomRun - 1) / kRandomRun, grain_for(kRandomRun), [=](std::int64_t begin, std::int64_t end) {
    std::uint32_t bits[kRandomRun];
    T given[kRandomRun], made[kRandomRun];
    for (std::int64_t first = begin * kRandomRun; first < std::min(end * kRandomRun, n); first += kRandomRun) {
      const std::int64_t count = std::min<std::int64_t>(kRandomRun, n - first);
      random_run(key, first, bits);
      T* target = to.open(first, count, add, made);
      drop_run(bits, threshold, from.read(first, count, given), scale, target, count, add);
      to.close(first, count, target);
    }
  });
}

}  // namespace

void dropout_forward(const Tensor& x, double p, RandomKey key, Tensor& y) {
  TAP_CHECK(p >= 0 && p <= 1, "dropout: p must be in [0, 1], not ", p);
  if (p == 0) return y.copy_from(x);
  visit_float("dropout", accumulate_dtype(x.dtype()), [&]<class T>(TypeTag<T>) { drop<T>(x, p, key, y, false); });
}

void dropout_backward(const Tensor& dy, double p, RandomKey key, Grad dx) {
  if (!dx) return;
  if (p == 0) return dx.pass(dy);
  const bool add = dx.claim();
  visit_float("dropout_backward", accumulate_dtype(dy.dtype()),
              [&]<class T>(TypeTag<T>) { drop<T>(dy, p, key, dx.tensor(), add); });
}

}  // namespace tapestry::cpu
