// Element i is kept if the upper 24 bits of its random word are at least p * 2^24, which is key.uniform(i) >= p in
// integers. Forward and backward are the same function of (values, p, key); nothing is saved.
#include "core/kernels/dropout.h"

#include <cmath>
#include <cstring>

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
void drop(const T* from, double p, RandomKey key, T* to, std::int64_t n, bool add) {
  const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
  const T scale = p < 1 ? static_cast<T>(1 / (1 - p)) : T(0);
  parallel_for((n + kRandomRun - 1) / kRandomRun, grain_for(kRandomRun), [=](std::int64_t begin, std::int64_t end) {
    std::uint32_t bits[kRandomRun];
    for (std::int64_t first = begin * kRandomRun; first < std::min(end * kRandomRun, n); first += kRandomRun) {
      random_run(key, first, bits);
      drop_run(bits, threshold, from + first, scale, to + first, std::min<std::int64_t>(kRandomRun, n - first), add);
    }
  });
}

}  // namespace

void dropout_forward(const Tensor& x, double p, RandomKey key, Tensor& y) {
  TAP_CHECK(p >= 0 && p <= 1, "dropout: p must be in [0, 1], not ", p);
  visit_float("dropout", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (p == 0)
      std::memcpy(y.mutable_data<T>(), x.data<T>(), static_cast<std::size_t>(x.bytes()));
    else
      drop(x.data<T>(), p, key, y.mutable_data<T>(), x.numel(), false);
  });
}

void dropout_backward(const Tensor& dy, double p, RandomKey key, Grad dx) {
  if (!dx) return;
  if (p == 0) return dx.pass(dy);
  const bool add = dx.claim();
  visit_float("dropout_backward", dy.dtype(),
              [&]<class T>(TypeTag<T>) { drop(dy.data<T>(), p, key, dx.data<T>(), dy.numel(), add); });
}

}  // namespace tapestry::cpu
