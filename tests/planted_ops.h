// Ops written as a user would write them, each with faults that can be planted: what gradcheck has to find.
#pragma once

#include <cmath>
#include <limits>

#include "autograd/gradcheck.h"
#include "core/random.h"

namespace tapestry::planted {

enum class Bug {
  none,
  sign,
  factor,
  one_entry,       // one entry off by 0.1 %
  missing_term,    // the projection of softmax forgotten
  missing_mean,    // 1/n forgotten
  wrong_axis,      // summed over rows instead of columns
  unreduced,       // only the last row of a broadcast gradient kept
  transposed,      // dy W instead of dy W^T
  swapped,         // the gradient of the other input
  stale,           // a value overwritten after it was saved, past save()
  stale_saved,     // the same, kept by save()
  always_adds,     // claim() ignored, old memory kept
  always_assigns,  // claim() ignored, earlier gradients lost
  forgets_claim,   // one input gets no gradient
  nan,
  noise,  // another gradient each time
};

inline Tensor normal(const Shape& shape, std::uint64_t stream = 0) {
  Tensor t = empty(shape, DType::f64);
  fill_normal(t, 0, 1, RandomKey{1, stream});
  return t;
}

// gradient[i] = value(i), assigned or added as claim() says.
template <class F>
void write(Grad gradient, F value, Bug bug = Bug::none) {
  if (!gradient) return;
  bool add = gradient.claim();
  if (bug == Bug::always_adds) add = true;
  if (bug == Bug::always_assigns) add = false;
  double* d = gradient.data<double>();
  for (std::int64_t i = 0; i < gradient.shape().numel(); ++i) d[i] = (add ? d[i] : 0) + value(i);
}

inline Tensor map(const Tensor& x, double (*f)(double)) {
  Tensor y = empty_like(x);
  double* out = y.mutable_data<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) out[i] = f(x.at(i));
  return y;
}

inline Var cube(const Var& x, Bug bug) {
  static int calls = 0;
  return record(
      "cube", map(x.value(), [](double v) { return v * v * v; }),
      [x = save(x), bug](const Tensor& dy, Grad dx) {
        const double wrong = bug == Bug::sign     ? -1
                             : bug == Bug::factor ? 1.001
                             : bug == Bug::nan    ? std::numeric_limits<double>::quiet_NaN()
                             : bug == Bug::noise  ? 1 + 1e-12 * ++calls
                                                  : 1;
        write(
            dx,
            [&](std::int64_t i) {
              const double g = 3 * x().at(i) * x().at(i) * dy.at(i) * wrong;
              return bug == Bug::one_entry && i == 4 ? 1.001 * g : g;
            },
            bug);
      },
      x);
}

// exp(x), then doubled in place: the saved y is no longer exp(x).
inline Var twice_exp(const Var& x, Bug bug) {
  Tensor y = map(x.value(), [](double v) { return std::exp(v); });
  Tensor kept = bug == Bug::none ? y.clone() : y;
  const Saved saved = save(kept);
  double* p = y.mutable_data<double>();
  for (std::int64_t i = 0; i < y.numel(); ++i) p[i] *= 2;
  return record(
      "twice_exp", y,
      [kept, saved, bug](const Tensor& dy, Grad dx) {
        const Tensor& e = bug == Bug::stale_saved ? saved() : kept;
        write(dx, [&](std::int64_t i) { return 2 * e.at(i) * dy.at(i); });
      },
      x);
}

inline Var softmax(const Var& x, Bug bug) {
  const std::int64_t rows = x.shape().rows(), n = x.shape().back();
  Tensor y = map(x.value(), [](double v) { return std::exp(v); });
  double* p = y.mutable_data<double>();
  for (std::int64_t r = 0; r < rows; ++r) {
    double total = 0;
    for (std::int64_t i = 0; i < n; ++i) total += p[r * n + i];
    for (std::int64_t i = 0; i < n; ++i) p[r * n + i] /= total;
  }
  return record(
      "softmax", y,
      [y = save(y), n, bug](const Tensor& dy, Grad dx) {
        write(dx, [&](std::int64_t i) {
          double dot = 0;
          for (std::int64_t k = 0; k < n; ++k) dot += dy.at(i / n * n + k) * y().at(i / n * n + k);
          return y().at(i) * (dy.at(i) - (bug == Bug::missing_term ? 0 : dot));
        });
      },
      x);
}

// The mean over rows of x [R, C] -> [C].
inline Var mean_of_rows(const Var& x, Bug bug) {
  const std::int64_t rows = x.shape()[0], n = x.shape()[1];
  Tensor y = zeros({n}, DType::f64);
  double* p = y.mutable_data<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) p[i % n] += x.value().at(i) / static_cast<double>(rows);
  return record(
      "mean_of_rows", y,
      [rows, n, bug](const Tensor& dy, Grad dx) {
        const double factor = bug == Bug::missing_mean ? 1 : 1 / static_cast<double>(rows);
        write(dx, [&](std::int64_t i) { return factor * dy.at(bug == Bug::wrong_axis ? i / n % n : i % n); });
      },
      x);
}

// a [R, C] times b [C], broadcast over rows.
inline Var scale_columns(const Var& a, const Var& b, Bug bug) {
  const std::int64_t n = a.shape()[1];
  Tensor y = empty_like(a.value());
  double* p = y.mutable_data<double>();
  for (std::int64_t i = 0; i < a.numel(); ++i) p[i] = a.value().at(i) * b.value().at(i % n);
  return record(
      "scale_columns", y,
      [a = save(a), b = save(b), n, bug](const Tensor& dy, Grad da, Grad db) {
        write(da, [&](std::int64_t i) { return dy.at(i) * b().at(i % n); });
        if (bug == Bug::forgets_claim) return;
        write(db, [&](std::int64_t c) {
          double total = 0;
          for (std::int64_t i = c; i < dy.numel(); i += n)
            total = (bug == Bug::unreduced ? 0 : total) + dy.at(i) * a().at(i);
          return total;
        });
      },
      a, b);
}

// x [N, C] times w [C, C].
inline Var product(const Var& x, const Var& w, Bug bug) {
  const std::int64_t rows = x.shape()[0], n = x.shape()[1];
  Tensor y = zeros(x.shape(), DType::f64);
  double* p = y.mutable_data<double>();
  for (std::int64_t i = 0; i < rows * n; ++i)
    for (std::int64_t k = 0; k < n; ++k) p[i] += x.value().at(i / n * n + k) * w.value().at(k * n + i % n);
  return record(
      "product", y,
      [x = save(x), w = save(w), rows, n, bug](const Tensor& dy, Grad dx, Grad dw) {
        write(dx, [&](std::int64_t i) {
          double total = 0;
          for (std::int64_t k = 0; k < n; ++k)
            total += dy.at(i / n * n + k) * w().at(bug == Bug::transposed ? k * n + i % n : i % n * n + k);
          return total;
        });
        write(dw, [&](std::int64_t i) {
          double total = 0;
          for (std::int64_t r = 0; r < rows; ++r) total += x().at(r * n + i / n) * dy.at(r * n + i % n);
          return total;
        });
      },
      x, w);
}

// a^2 b
inline Var square_times(const Var& a, const Var& b, Bug bug) {
  Tensor y = empty_like(a.value());
  double* p = y.mutable_data<double>();
  for (std::int64_t i = 0; i < a.numel(); ++i) p[i] = a.value().at(i) * a.value().at(i) * b.value().at(i);
  return record(
      "square_times", y,
      [a = save(a), b = save(b), bug](const Tensor& dy, Grad da, Grad db) {
        if (bug == Bug::swapped) std::swap(da, db);
        write(da, [&](std::int64_t i) { return 2 * a().at(i) * b().at(i) * dy.at(i); });
        write(db, [&](std::int64_t i) { return a().at(i) * a().at(i) * dy.at(i); });
      },
      a, b);
}

inline Var relu(const Var& x) {
  return record(
      "relu", map(x.value(), [](double v) { return v > 0 ? v : 0.0; }),
      [x = save(x)](const Tensor& dy, Grad dx) {
        write(dx, [&](std::int64_t i) { return x().at(i) > 0 ? dy.at(i) : 0; });
      },
      x);
}

// Keeps each element with probability 1/2.
inline Var drop(const Var& x, RandomKey key) {
  Tensor y = empty_like(x.value());
  double* p = y.mutable_data<double>();
  for (std::int64_t i = 0; i < y.numel(); ++i) p[i] = key.uniform(i) < 0.5 ? 0 : 2 * x.value().at(i);
  return record(
      "drop", y,
      [key](const Tensor& dy, Grad dx) {
        write(dx, [&](std::int64_t i) { return key.uniform(i) < 0.5 ? 0 : 2 * dy.at(i); });
      },
      x);
}

inline auto with(Var (*op)(const Var&, Bug), Bug bug) {
  return [=](const Var& x) { return op(x, bug); };
}
inline auto with(Var (*op)(const Var&, const Var&, Bug), Bug bug) {
  return [=](const Var& a, const Var& b) { return op(a, b, bug); };
}

}  // namespace tapestry::planted
