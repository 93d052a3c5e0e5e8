// Element i is kept if the upper 24 bits of its random word are at least p * 2^24, which is key.uniform(i) >= p in
// integers. Forward and backward are the same function of (values, p, key); nothing is saved.
#include "core/kernels/dropout.h"

#include <cmath>
#include <cstring>

#include "core/kernels/rows.h"

namespace tapestry::cpu {

namespace {

constexpr int kBlocks = 64;        // Philox blocks computed side by side
constexpr int kRun = 4 * kBlocks;  // random words they give

// bits[i] = key.bits(first + i). `first` is a multiple of 4. The loops over blocks become vector code.
void random_run(RandomKey key, std::int64_t first, std::uint32_t* bits) {
  std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    const std::uint64_t counter = (static_cast<std::uint64_t>(first) >> 2) + static_cast<std::uint64_t>(b);
    c0[b] = static_cast<std::uint32_t>(counter);
    c1[b] = static_cast<std::uint32_t>(counter >> 32);
    c2[b] = static_cast<std::uint32_t>(key.stream);
    c3[b] = static_cast<std::uint32_t>(key.stream >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int b = 0; b < kBlocks; ++b) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[b], p1 = std::uint64_t{0xCD9E8D57u} * c2[b];
      c0[b] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[b] ^ k0;
      c2[b] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[b] ^ k1;
      c1[b] = static_cast<std::uint32_t>(p1);
      c3[b] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int b = 0; b < kBlocks; ++b) {
    bits[4 * b] = c0[b];
    bits[4 * b + 1] = c1[b];
    bits[4 * b + 2] = c2[b];
    bits[4 * b + 3] = c3[b];
  }
}

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
  parallel_for((n + kRun - 1) / kRun, grain_for(kRun), [=](std::int64_t begin, std::int64_t end) {
    std::uint32_t bits[kRun];
    for (std::int64_t first = begin * kRun; first < std::min(end * kRun, n); first += kRun) {
      random_run(key, first, bits);
      drop_run(bits, threshold, from + first, scale, to + first, std::min<std::int64_t>(kRun, n - first), add);
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
