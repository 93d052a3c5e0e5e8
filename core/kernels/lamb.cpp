// CPU kernel of lamb.h. Two passes, since the ratio needs all of u: the first updates m and v and sums squares, in
// double and by blocks of fixed size; the second recomputes u from them rather than keeping it.
#include "core/kernels/lamb.h"

#include <cmath>
#include <vector>

#include "core/kernels/optimizer_map.h"
#include "core/kernels/simd_math.h"

namespace tapestry::cpu {

namespace {

template <class T>
struct LambRule {
  explicit LambRule(const LambStep& s)
      : scale(static_cast<T>(1 / (1 - std::pow(s.beta1, static_cast<double>(s.updates))))),
        root_scale(static_cast<T>(1 / std::sqrt(1 - std::pow(s.beta2, static_cast<double>(s.updates))))),
        beta1(static_cast<T>(s.beta1)),
        rest1(static_cast<T>(1 - s.beta1)),
        beta2(static_cast<T>(s.beta2)),
        rest2(static_cast<T>(1 - s.beta2)),
        eps(static_cast<T>(s.eps)),
        decay(static_cast<T>(s.weight_decay)),
        grad_scale(static_cast<T>(s.grad_scale)) {}

  template <class A>
  A direction(A p, A m, A v) const {
    return scale * m / (simd::sqrt(v) * root_scale + eps) + decay * p;
  }
  T scale, root_scale, beta1, rest1, beta2, rest2, eps, decay, grad_scale;
};

struct Squares {
  double value = 0, direction = 0;
};

template <class T>
Squares update_moments(const T* value, const T* grad, T* m, T* v, std::int64_t count, const LambRule<T>& rule) {
  constexpr int kLanes = simd::kLanes<T>;
  double p_sums[kLanes] = {}, u_sums[kLanes] = {};
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const std::int64_t n = std::min<std::int64_t>(kLanes, count - i);
    const auto p = simd::load_partial(value + i, n);
    const auto g = rule.grad_scale * simd::load_partial(grad + i, n);
    const auto first = rule.beta1 * simd::load_partial(m + i, n) + rule.rest1 * g;
    const auto second = rule.beta2 * simd::load_partial(v + i, n) + rule.rest2 * (g * g);
    const auto u = rule.direction(p, first, second);
    simd::store_partial(m + i, first, n);
    simd::store_partial(v + i, second, n);
    for (int j = 0; j < kLanes; ++j) {
      p_sums[j] += static_cast<double>(p[j]) * static_cast<double>(p[j]);
      u_sums[j] += static_cast<double>(u[j]) * static_cast<double>(u[j]);
    }
  }
  Squares total;
  for (int j = 0; j < kLanes; ++j) total = {total.value + p_sums[j], total.direction + u_sums[j]};
  return total;
}

}  // namespace

void lamb_update(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const LambStep& step) {
  const FlatRange all{0, value.numel()};
  for (const Tensor* t : {&grad, static_cast<const Tensor*>(&m), static_cast<const Tensor*>(&v)})
    check_range("lamb_update", all, value, *t);
  // Grows to the largest parameter seen, so a steady state allocates nothing.
  thread_local std::vector<Squares> scratch;
  std::vector<Squares>& partial = scratch;
  partial.resize(static_cast<std::size_t>((all.end + kFlatBlock - 1) / kFlatBlock));
  visit_float("lamb_update", value.dtype(), [&]<class T>(TypeTag<T>) {
    const LambRule<T> rule(step);
    T *const p = value.mutable_data<T>(), *const first = m.mutable_data<T>(), *const second = v.mutable_data<T>();
    const T* const g = grad.data<T>();
    for_blocks(all, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i += kFlatBlock)
        partial[static_cast<std::size_t>(i / kFlatBlock)] =
            update_moments(p + i, g + i, first + i, second + i, std::min(kFlatBlock, end - i), rule);
    });
    Squares sum;
    for (const Squares& s : partial) sum = {sum.value + s.value, sum.direction + s.direction};
    const double ratio = sum.value > 0 && sum.direction > 0 ? std::sqrt(sum.value / sum.direction) : 1;
    const T rate = static_cast<T>(step.lr * ratio);
    for_blocks(all, [&](std::int64_t begin, std::int64_t end) {
      map_flat(p, first, std::array{second}, begin, end,
               [rate, rule](auto& x, auto m1, auto& m2) { x -= rate * rule.direction(x, m1, m2); });
    });
  });
}

}  // namespace tapestry::cpu
