// CPU kernels of optimizer.h: one rule for each optimizer, run over the buffers by map_flat. What depends on the step
// only is computed once, in double. Nothing is saved; the norm keeps one partial sum per block.
#include "core/kernels/optimizer.h"

#include <cmath>
#include <vector>

#include "core/kernels/optimizer_map.h"
#include "core/kernels/simd_math.h"

namespace tapestry::cpu {

namespace {

template <class T>
struct SgdRule {
  explicit SgdRule(const SgdStep& s)
      : lr(static_cast<T>(s.lr)),
        decay(static_cast<T>(s.weight_decay)),
        grad_scale(static_cast<T>(s.grad_scale)),
        carried(static_cast<T>(s.updates == 1 ? 0 : s.momentum)),
        from_grad(s.nesterov ? T(1) : T(0)),
        from_velocity(s.nesterov ? static_cast<T>(s.momentum) : T(1)) {}

  template <class A>
  void operator()(A& p, A g) const {
    p -= lr * (grad_scale * g + decay * p);
  }
  template <class A>
  void operator()(A& p, A g, A& velocity) const {
    g = grad_scale * g + decay * p;
    velocity = carried * velocity + g;
    p -= lr * (from_grad * g + from_velocity * velocity);
  }
  T lr, decay, grad_scale, carried, from_grad, from_velocity;
};

template <class T>
struct AdamRule {
  explicit AdamRule(const AdamStep& s)
      : rate(static_cast<T>(s.lr / (1 - std::pow(s.beta1, static_cast<double>(s.updates))))),
        root_scale(static_cast<T>(1 / std::sqrt(1 - std::pow(s.beta2, static_cast<double>(s.updates))))),
        beta1(static_cast<T>(s.beta1)),
        rest1(static_cast<T>(1 - s.beta1)),
        beta2(static_cast<T>(s.beta2)),
        rest2(static_cast<T>(1 - s.beta2)),
        eps(static_cast<T>(s.eps)),
        grad_scale(static_cast<T>(s.grad_scale)),
        in_grad(static_cast<T>(s.decoupled ? 0 : s.weight_decay)),
        keep(static_cast<T>(s.decoupled ? 1 - s.lr * s.weight_decay : 1)) {}

  template <class A>
  void operator()(A& p, A g, A& m, A& v) const {
    g = grad_scale * g + in_grad * p;
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * (g * g);
    p = keep * p - rate * m / (simd::sqrt(v) * root_scale + eps);
  }
  T rate, root_scale, beta1, rest1, beta2, rest2, eps, grad_scale, in_grad, keep;
};

template <class T>
struct RmsPropRule {
  explicit RmsPropRule(const RmsPropStep& s)
      : lr(static_cast<T>(s.lr)),
        alpha(static_cast<T>(s.alpha)),
        rest(static_cast<T>(1 - s.alpha)),
        eps(static_cast<T>(s.eps)),
        decay(static_cast<T>(s.weight_decay)),
        momentum(static_cast<T>(s.momentum)),
        grad_scale(static_cast<T>(s.grad_scale)) {}

  template <class A>
  A gradient(A p, A g, A& v) const {
    g = grad_scale * g + decay * p;
    v = alpha * v + rest * (g * g);
    return g;
  }
  template <class A>
  A centred(A g, A v, A& mean) const {
    mean = alpha * mean + rest * g;
    const A variance = v - mean * mean;  // rounding may leave it just below 0
    return g / (simd::sqrt(simd::select(variance < T(0), T(0), variance)) + eps);
  }
  T lr, alpha, rest, eps, decay, momentum, grad_scale;
};
template <class T>
struct RmsPropPlain : RmsPropRule<T> {
  using RmsPropRule<T>::RmsPropRule;
  template <class A>
  void operator()(A& p, A g, A& v) const {
    g = this->gradient(p, g, v);
    p -= this->lr * (g / (simd::sqrt(v) + this->eps));
  }
};
template <class T>
struct RmsPropCentred : RmsPropRule<T> {
  using RmsPropRule<T>::RmsPropRule;
  template <class A>
  void operator()(A& p, A g, A& v, A& mean) const {
    g = this->gradient(p, g, v);
    p -= this->lr * this->centred(g, v, mean);
  }
};
template <class T>
struct RmsPropMomentum : RmsPropRule<T> {
  using RmsPropRule<T>::RmsPropRule;
  template <class A>
  void operator()(A& p, A g, A& v, A& velocity) const {
    g = this->gradient(p, g, v);
    velocity = this->momentum * velocity + g / (simd::sqrt(v) + this->eps);
    p -= this->lr * velocity;
  }
  template <class A>
  void operator()(A& p, A g, A& v, A& mean, A& velocity) const {
    g = this->gradient(p, g, v);
    velocity = this->momentum * velocity + this->centred(g, v, mean);
    p -= this->lr * velocity;
  }
};

template <class T>
struct AdagradRule {
  explicit AdagradRule(const AdagradStep& s)
      : lr(static_cast<T>(s.lr)),
        eps(static_cast<T>(s.eps)),
        start(static_cast<T>(s.updates == 1 ? s.initial : 0)),
        decay(static_cast<T>(s.weight_decay)),
        grad_scale(static_cast<T>(s.grad_scale)) {}

  template <class A>
  void operator()(A& p, A g, A& sum) const {
    g = grad_scale * g + decay * p;
    sum = (sum + start) + g * g;
    p -= lr * (g / (simd::sqrt(sum) + eps));
  }
  T lr, eps, start, decay, grad_scale;
};

template <class T>
struct LionRule {
  explicit LionRule(const LionStep& s)
      : lr(static_cast<T>(s.lr)),
        beta1(static_cast<T>(s.beta1)),
        rest1(static_cast<T>(1 - s.beta1)),
        beta2(static_cast<T>(s.beta2)),
        rest2(static_cast<T>(1 - s.beta2)),
        keep(static_cast<T>(1 - s.lr * s.weight_decay)),
        grad_scale(static_cast<T>(s.grad_scale)) {}

  template <class A>
  void operator()(A& p, A g, A& m) const {
    g = grad_scale * g;
    const A direction = beta1 * m + rest1 * g;
    const A zero{};
    p = keep * p - simd::select(direction > zero, zero + lr, simd::select(direction < zero, zero - lr, zero));
    m = beta2 * m + rest2 * g;
  }
  T lr, beta1, rest1, beta2, rest2, keep, grad_scale;
};

template <class T>
struct EmaRule {
  explicit EmaRule(double decay) : keep(static_cast<T>(decay)), rest(static_cast<T>(1 - decay)) {}
  template <class A>
  void operator()(A& average, A value) const {
    average = keep * average + rest * value;
  }
  T keep, rest;
};

// Sixteen running sums: enough independent chains to be bound by memory, whatever the instruction set.
template <class T>
double block_square_sum(const T* x, std::int64_t count) {
  constexpr int kSums = 16;
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (int j = 0; j < kSums; ++j) sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  for (int j = 0; i + j < count; ++j) sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  for (int width = kSums / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) sums[j] += sums[j + width];
  return sums[0];
}

}  // namespace

void sgd_update(Tensor& value, const Tensor& grad, Tensor& velocity, const FlatRange& range, const SgdStep& step) {
  TAP_CHECK(velocity || step.momentum == 0, "sgd_update: momentum needs a velocity buffer");
  if (velocity)
    update_flat<SgdRule>("sgd_update", value, grad, std::array{&velocity}, range, step);
  else
    update_flat<SgdRule>("sgd_update", value, grad, std::array<Tensor*, 0>{}, range, step);
}

void adam_update(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const FlatRange& range,
                 const AdamStep& step) {
  update_flat<AdamRule>("adam_update", value, grad, std::array{&m, &v}, range, step);
}

void rmsprop_update(Tensor& value, const Tensor& grad, Tensor& v, Tensor& mean, Tensor& velocity,
                    const FlatRange& range, const RmsPropStep& step) {
  TAP_CHECK(velocity || step.momentum == 0, "rmsprop_update: momentum needs a velocity buffer");
  constexpr const char* kName = "rmsprop_update";
  if (mean && velocity)
    update_flat<RmsPropMomentum>(kName, value, grad, std::array{&v, &mean, &velocity}, range, step);
  else if (velocity)
    update_flat<RmsPropMomentum>(kName, value, grad, std::array{&v, &velocity}, range, step);
  else if (mean)
    update_flat<RmsPropCentred>(kName, value, grad, std::array{&v, &mean}, range, step);
  else
    update_flat<RmsPropPlain>(kName, value, grad, std::array{&v}, range, step);
}

void adagrad_update(Tensor& value, const Tensor& grad, Tensor& sum, const FlatRange& range, const AdagradStep& step) {
  update_flat<AdagradRule>("adagrad_update", value, grad, std::array{&sum}, range, step);
}

void lion_update(Tensor& value, const Tensor& grad, Tensor& m, const FlatRange& range, const LionStep& step) {
  update_flat<LionRule>("lion_update", value, grad, std::array{&m}, range, step);
}

void ema_update(Tensor& average, const Tensor& value, double decay) {
  update_flat<EmaRule>("ema_update", average, value, std::array<Tensor*, 0>{}, {0, average.numel()}, decay);
}

void swap_elements(Tensor& a, Tensor& b) {
  TAP_CHECK(a.shape() == b.shape() && a.dtype() == b.dtype(), "swap_elements: ", a.shape(), " ", a.dtype(), " and ",
            b.shape(), " ", b.dtype(), " must be equal");
  visit_float("swap_elements", a.dtype(), [&]<class T>(TypeTag<T>) {
    T *const x = a.mutable_data<T>(), *const y = b.mutable_data<T>();
    for_blocks({0, a.numel()},
               [&](std::int64_t begin, std::int64_t end) { std::swap_ranges(x + begin, x + end, y + begin); });
  });
}

void square_sum(const Tensor& x, const FlatRange& range, double& sum) {
  check_range("square_sum", range, x, x);
  // Grows to the largest range seen, so a steady state allocates nothing.
  thread_local std::vector<double> scratch;
  std::vector<double>& partial = scratch;
  partial.resize(static_cast<std::size_t>((range.end - range.begin + kFlatBlock - 1) / kFlatBlock));
  visit_float("square_sum", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* const data = x.data<T>();
    for_blocks(range, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i += kFlatBlock)
        partial[static_cast<std::size_t>((i - range.begin) / kFlatBlock)] =
            block_square_sum(data + i, std::min(kFlatBlock, end - i));
    });
  });
  for (const double part : partial) sum += part;
}

}  // namespace tapestry::cpu
