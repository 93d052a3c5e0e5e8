// CPU kernels of optimizer.h. Work is cut into blocks of fixed size, so that neither a vector tail nor the order of the
// norm's sum depends on the number of threads. Nothing is saved; the norm keeps one partial sum per block.
#include "core/kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/parallel.h"

namespace tapestry::cpu {

namespace {

constexpr std::int64_t kBlock = 16384;

// Calls body(begin, end) on runs of whole blocks that cover the range; only the last run may end inside a block.
template <class Body>
void for_blocks(const FlatRange& range, Body&& body) {
  const std::int64_t blocks = (range.end - range.begin + kBlock - 1) / kBlock;
  parallel_for(blocks, 1, [&](std::int64_t first, std::int64_t last) {
    body(range.begin + first * kBlock, std::min(range.begin + last * kBlock, range.end));
  });
}

void check_range(const char* kernel, const FlatRange& range, const Tensor& value, const Tensor& other) {
  TAP_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= value.numel(), kernel, ": range [",
            range.begin, ", ", range.end, ") must lie in [0, ", value.numel(), ")");
  TAP_CHECK(other.numel() == value.numel(), kernel, ": the buffers hold ", value.numel(), " and ", other.numel(),
            " elements, but must be equal");
}

template <class T>
void adamw(T* __restrict__ value, const T* __restrict__ grad, T* __restrict__ m, T* __restrict__ v, std::int64_t begin,
           std::int64_t end, const AdamWStep& step) {
  const double updates = static_cast<double>(step.updates);
  const T rate = static_cast<T>(step.lr / (1 - std::pow(step.beta1, updates)));
  const T root_scale = static_cast<T>(1 / std::sqrt(1 - std::pow(step.beta2, updates)));
  const T beta1 = static_cast<T>(step.beta1), rest1 = static_cast<T>(1 - step.beta1);
  const T beta2 = static_cast<T>(step.beta2), rest2 = static_cast<T>(1 - step.beta2);
  const T eps = static_cast<T>(step.eps), keep = static_cast<T>(1 - step.lr * step.weight_decay);
  const T grad_scale = static_cast<T>(step.grad_scale);
  for (std::int64_t i = begin; i < end; ++i) {
    const T g = grad_scale * grad[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * (g * g);
    value[i] = keep * value[i] - rate * m[i] / (std::sqrt(v[i]) * root_scale + eps);
  }
}

template <class T>
void sgd(T* __restrict__ value, const T* __restrict__ grad, std::int64_t begin, std::int64_t end, const SgdStep& step) {
  const T lr = static_cast<T>(step.lr), decay = static_cast<T>(step.weight_decay);
  const T grad_scale = static_cast<T>(step.grad_scale);
  for (std::int64_t i = begin; i < end; ++i) value[i] -= lr * (grad_scale * grad[i] + decay * value[i]);
}

template <class T>
void sgd_momentum(T* __restrict__ value, const T* __restrict__ grad, T* __restrict__ velocity, std::int64_t begin,
                  std::int64_t end, const SgdStep& step) {
  const T lr = static_cast<T>(step.lr), decay = static_cast<T>(step.weight_decay);
  const T grad_scale = static_cast<T>(step.grad_scale), momentum = static_cast<T>(step.momentum);
  const T carried = step.updates == 1 ? T(0) : momentum;
  const T from_grad = step.nesterov ? T(1) : T(0), from_velocity = step.nesterov ? momentum : T(1);
  for (std::int64_t i = begin; i < end; ++i) {
    const T g = grad_scale * grad[i] + decay * value[i];
    velocity[i] = carried * velocity[i] + g;
    value[i] -= lr * (from_grad * g + from_velocity * velocity[i]);
  }
}

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

void adamw_update(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const FlatRange& range,
                  const AdamWStep& step) {
  check_range("adamw_update", range, value, grad);
  check_range("adamw_update", range, m, v);
  visit_float("adamw_update", value.dtype(), [&]<class T>(TypeTag<T>) {
    T *const p = value.mutable_data<T>(), *const first = m.mutable_data<T>(), *const second = v.mutable_data<T>();
    const T* const g = grad.data<T>();
    for_blocks(range, [&](std::int64_t begin, std::int64_t end) { adamw(p, g, first, second, begin, end, step); });
  });
}

void sgd_update(Tensor& value, const Tensor& grad, Tensor& velocity, const FlatRange& range, const SgdStep& step) {
  check_range("sgd_update", range, value, grad);
  if (velocity) check_range("sgd_update", range, value, velocity);
  TAP_CHECK(velocity || step.momentum == 0, "sgd_update: momentum needs a velocity buffer");
  visit_float("sgd_update", value.dtype(), [&]<class T>(TypeTag<T>) {
    T* const p = value.mutable_data<T>();
    T* const u = velocity ? velocity.mutable_data<T>() : nullptr;
    const T* const g = grad.data<T>();
    for_blocks(range, [&](std::int64_t begin, std::int64_t end) {
      u ? sgd_momentum(p, g, u, begin, end, step) : sgd(p, g, begin, end, step);
    });
  });
}

void square_sum(const Tensor& x, const FlatRange& range, double& sum) {
  check_range("square_sum", range, x, x);
  // Grows to the largest range seen, so a steady state allocates nothing.
  thread_local std::vector<double> scratch;
  std::vector<double>& partial = scratch;
  partial.resize(static_cast<std::size_t>((range.end - range.begin + kBlock - 1) / kBlock));
  visit_float("square_sum", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* const data = x.data<T>();
    for_blocks(range, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i += kBlock)
        partial[static_cast<std::size_t>((i - range.begin) / kBlock)] =
            block_square_sum(data + i, std::min(kBlock, end - i));
    });
  });
  for (const double part : partial) sum += part;
}

}  // namespace tapestry::cpu
