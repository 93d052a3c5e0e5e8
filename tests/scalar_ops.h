// Ops in double for tests of the tape, each made with record() as a user would make it.
#pragma once

#include <cmath>

#include "autograd/tape.h"

namespace tapestry::testing {

inline double* values(Tensor& t) { return t.mutable_data<double>(); }
inline const double* values(const Tensor& t) { return t.data<double>(); }
inline Tensor vec(std::initializer_list<double> v) {
  return tensor(v, {static_cast<std::int64_t>(v.size())}, DType::f64);
}
inline Tensor one(double v) { return scalar(v, DType::f64); }

// dx (+)= factor[i] * dy[i], the whole protocol of a backward function.
template <class F>
void write_grad(const Tensor& dy, Grad dx, F&& factor) {
  if (!dx) return;
  const bool add = dx.claim();
  double* p = dx.data<double>();
  const double* d = values(dy);
  for (std::int64_t i = 0; i < dx.shape().numel(); ++i) p[i] = (add ? p[i] : 0) + factor(i) * d[i];
}

inline Var mul(const Var& a, const Var& b) {
  Tensor y = empty_like(a.value());
  for (std::int64_t i = 0; i < y.numel(); ++i) values(y)[i] = values(a.value())[i] * values(b.value())[i];
  return record(
      "mul", y,
      [a = save(a), b = save(b)](const Tensor& dy, Grad da, Grad db) {
        write_grad(dy, da, [&](auto i) { return values(b())[i]; });
        write_grad(dy, db, [&](auto i) { return values(a())[i]; });
      },
      a, b);
}

inline Var add(const Var& a, const Var& b) {
  Tensor y = empty_like(a.value());
  for (std::int64_t i = 0; i < y.numel(); ++i) values(y)[i] = values(a.value())[i] + values(b.value())[i];
  return record(
      "add", y,
      [](const Tensor& dy, Grad da, Grad db) {
        if (da) da.pass(dy);
        if (db) db.pass(dy);
      },
      a, b);
}

inline Var times(const Var& x, double factor) {
  Tensor y = x.value().clone();
  for (std::int64_t i = 0; i < y.numel(); ++i) values(y)[i] *= factor;
  return record(
      "times", y, [factor](const Tensor& dy, Grad dx) { write_grad(dy, dx, [=](auto) { return factor; }); }, x);
}

inline Var exp(const Var& x) {
  Tensor y = x.value().clone();
  for (std::int64_t i = 0; i < y.numel(); ++i) values(y)[i] = std::exp(values(y)[i]);
  return record(
      "exp", y,
      [y = save(y)](const Tensor& dy, Grad dx) { write_grad(dy, dx, [&](auto i) { return values(y())[i]; }); }, x);
}

inline Var total(const Var& x) {
  Tensor y = zeros({}, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) values(y)[0] += values(x.value())[i];
  return record(
      "total", y,
      [](const Tensor& dy, Grad dx) {
        const bool add_to = dx.claim();
        for (std::int64_t i = 0; i < dx.shape().numel(); ++i)
          dx.data<double>()[i] = (add_to ? dx.data<double>()[i] : 0) + dy.item();
      },
      x);
}

// [total, maximum]: two outputs of one record.
inline std::array<Var, 2> total_and_max(const Var& x) {
  const double* p = values(x.value());
  double sum = 0;
  std::int64_t best = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    sum += p[i];
    if (p[i] > p[best]) best = i;
  }
  return record(
      "total_and_max", std::array{one(sum), one(p[best])},
      [best](const Tensor& dsum, const Tensor& dmax, Grad dx) {
        const bool add_to = dx.claim();
        double* d = dx.data<double>();
        for (std::int64_t i = 0; i < dx.shape().numel(); ++i)
          d[i] = (add_to ? d[i] : 0) + (dsum ? dsum.item() : 0) + (dmax && i == best ? dmax.item() : 0);
      },
      x);
}

inline Var sum_of(std::span<const Var> parts) {
  Tensor y = zeros(parts[0].shape(), DType::f64);
  for (const Var& part : parts)
    for (std::int64_t i = 0; i < y.numel(); ++i) values(y)[i] += values(part.value())[i];
  return record(
      "sum_of", y,
      [](const Tensor& dy, std::span<const Grad> grads) {
        for (const Grad& g : grads)
          if (g) g.pass(dy);
      },
      parts);
}

}  // namespace tapestry::testing
