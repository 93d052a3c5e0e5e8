// The extremum and its position are found together; a minimum is the maximum of -x. Saved: both.
#include "core/kernels/extremum.h"

#include <bit>
#include <cmath>

#include "core/kernels/fold.h"
#include "core/kernels/slices.h"

namespace tapestry::cpu {

namespace {

// sign * the largest of sign * x, and the bits of where the first of them is: -1 for the -inf to start from.
template <class T>
struct First {
  using Stored = T;
  using Lane = T;
  using V = simd::Vec<T>;
  using Index = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  using At = simd::Vec<Index>;
  using Partial = Vectors<T, 2>;
  T sign;

  Partial start() const { return {simd::splat(kMinusInfinity<T>), std::bit_cast<V>(At{} - Index(1))}; }
  void take(Partial& best, V x, V, At at) const {
    const V v = x * sign;
    const auto better = ((v > best[0]) | (v != v)) & (best[0] == best[0]);
    best = {better ? v : best[0], better ? std::bit_cast<V>(at) : best[1]};
  }
  void join(Partial& best, const Partial& other) const {
    const auto number = best[0] == best[0], nan = other[0] != other[0];
    const auto earlier = std::bit_cast<At>(other[1]) < std::bit_cast<At>(best[1]);
    const auto better = (((other[0] > best[0]) | nan) & number) | (((other[0] == best[0]) | (nan & ~number)) & earlier);
    best = {better ? other[0] : best[0], better ? other[1] : best[1]};
  }
};

}  // namespace

void extremum_forward(const Tensor& x, const Shape& kept, bool largest, Tensor& y, Tensor& position) {
  visit_float("extremum", x.dtype(), [&]<class T>(TypeTag<T>) {
    using Index = typename First<T>::Index;
    TAP_CHECK(kept.numel() == 0 || x.numel() / kept.numel() <= std::numeric_limits<Index>::max(), "extremum: over ",
              x.numel(), " elements, more than positions in ", x.dtype(), " can count; reduce one axis after another");
    T* py = y.mutable_data<T>();
    std::int64_t* where = position.mutable_data<std::int64_t>();
    const First<T> first{largest ? T(1) : T(-1)};
    fold(x.data<T>(), x.shape(), kept, fold_stage(first, nullptr, [=](std::int64_t i, auto best) {
           py[i] = best[0] * first.sign;
           where[i] = std::max(std::bit_cast<Index>(best[1]), Index(0));  // all are -inf: the first one is
         }));
  });
}

void extremum_backward(const Tensor& dy, const Tensor& y, const Tensor& position, const Shape& kept, Grad dx) {
  if (!dx) return;
  visit_float("extremum", y.dtype(), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim();
    T* pdx = dx.data<T>();
    const auto clear = [=](std::int64_t begin, std::int64_t end) { std::fill(pdx + begin, pdx + end, T(0)); };
    if (!add) parallel_for(dx.shape().numel(), kSerialElements, clear);
    const T *pdy = dy.data<T>(), *py = y.data<T>();
    const std::int64_t* where = position.data<std::int64_t>();
    const Slices slices(dx.shape(), kept);
    parallel_rows(slices.count(), 1, [&](std::int64_t i) {
      pdx[slices.start(i) + slices.term(where[i])] += std::isnan(py[i]) ? py[i] : pdy[i];
    });
  });
}

}  // namespace tapestry::cpu
