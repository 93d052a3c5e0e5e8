// CPU kernel of adafactor.h. The gradient is read for the row means, for the column means, for rms(u) and for the
// update; u is never stored, since g / sqrt(r c / mean r) is g times one factor of the row and one of the column. Rows
// are spread over threads for row sums, columns for column sums, so no sum is split.
#include "core/kernels/adafactor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernels/optimizer_map.h"
#include "core/kernels/simd_math.h"

namespace tapestry::cpu {

namespace {

constexpr std::int64_t kColumns = 64;  // that a thread sums at a time

// The gradient of one parameter. A vector is one row of a matrix, with column factors 1 / sqrt(v).
template <class T>
struct Matrices {
  std::int64_t count, rows, columns;
  const T* grad;
  T grad_scale;
  // A thread takes at least this many rows, so that a small parameter stays in one.
  std::int64_t row_grain() const { return std::max<std::int64_t>(1, kFlatBlock / std::max<std::int64_t>(columns, 1)); }
};

template <class T>
double square_sum_of(const T* x, std::int64_t count) {
  constexpr int kSums = 16;
  double sums[kSums] = {};
  for (std::int64_t i = 0; i < count; i += kSums) {
    const int n = static_cast<int>(std::min<std::int64_t>(kSums, count - i));
    for (int j = 0; j < n; ++j) sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  }
  double total = 0;
  for (const double s : sums) total += s;
  return total;
}

template <class T>
void update_rows(const Matrices<T>& g, T* rows, const AdafactorStep& step) {
  const double scale = step.grad_scale * step.grad_scale / static_cast<double>(g.columns);
  parallel_for(g.count * g.rows, g.row_grain(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const double mean = square_sum_of(g.grad + r * g.columns, g.columns) * scale + step.eps1;
      rows[r] = static_cast<T>(step.beta2 * static_cast<double>(rows[r]) + (1 - step.beta2) * mean);
    }
  });
}

template <class T>
void update_columns(const Matrices<T>& g, T* columns, const AdafactorStep& step) {
  const double scale = step.grad_scale * step.grad_scale / static_cast<double>(g.rows);
  const std::int64_t strips = (g.columns + kColumns - 1) / kColumns;
  const std::int64_t grain = std::max<std::int64_t>(1, kFlatBlock / (kColumns * std::max<std::int64_t>(g.rows, 1)));
  parallel_for(g.count * strips, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t matrix = item / strips, first = item % strips * kColumns;
      const std::int64_t width = std::min(kColumns, g.columns - first);
      const T* x = g.grad + matrix * g.rows * g.columns + first;
      double sums[kColumns] = {};
      for (std::int64_t r = 0; r < g.rows; ++r, x += g.columns)
        for (std::int64_t c = 0; c < width; ++c) sums[c] += static_cast<double>(x[c]) * static_cast<double>(x[c]);
      T* const out = columns + matrix * g.columns + first;
      for (std::int64_t c = 0; c < width; ++c)
        out[c] =
            static_cast<T>(step.beta2 * static_cast<double>(out[c]) + (1 - step.beta2) * (sums[c] * scale + step.eps1));
    }
  });
}

// The factors of u: 1 / sqrt(row / mean row) and 1 / sqrt(column).
template <class T>
void factors(const Matrices<T>& g, const T* rows, const T* columns, T* row_factors, T* column_factors) {
  for (std::int64_t b = 0; b < g.count; ++b) {
    double mean = 0;
    for (std::int64_t r = 0; r < g.rows; ++r) mean += static_cast<double>(rows[b * g.rows + r]);
    mean /= static_cast<double>(g.rows);
    for (std::int64_t r = b * g.rows; r < (b + 1) * g.rows; ++r)
      row_factors[r] = static_cast<T>(std::sqrt(mean / static_cast<double>(rows[r])));
  }
  for (std::int64_t c = 0; c < g.count * g.columns; ++c)
    column_factors[c] = static_cast<T>(1 / std::sqrt(static_cast<double>(columns[c])));
}

// Calls body(row, the column factors of its matrix) for every row of u, spread over threads.
template <class T, class Body>
void for_rows(const Matrices<T>& g, const T* column_factors, Body&& body) {
  parallel_for(g.count * g.rows, g.row_grain(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) body(r, column_factors + r / g.rows * g.columns);
  });
}

template <class T>
void apply(const Matrices<T>& g, T* value, const T* row_factors, const T* column_factors, const AdafactorStep& step) {
  struct Squares {
    double value = 0, u = 0;
  };
  thread_local std::vector<Squares> scratch;
  std::vector<Squares>& partial = scratch;
  partial.assign(static_cast<std::size_t>(g.count * g.rows), {});
  for_rows(g, column_factors, [&](std::int64_t r, const T* columns) {
    constexpr int kSums = 16;
    double p_sums[kSums] = {}, u_sums[kSums] = {};
    const T *const p = value + r * g.columns, *const x = g.grad + r * g.columns;
    const T factor = row_factors[r] * g.grad_scale;
    for (std::int64_t i = 0; i < g.columns; i += kSums) {
      const int n = static_cast<int>(std::min<std::int64_t>(kSums, g.columns - i));
      for (int j = 0; j < n; ++j) {
        const double u = static_cast<double>(factor * columns[i + j] * x[i + j]);
        p_sums[j] += static_cast<double>(p[i + j]) * static_cast<double>(p[i + j]);
        u_sums[j] += u * u;
      }
    }
    Squares& sum = partial[static_cast<std::size_t>(r)];
    for (int j = 0; j < kSums; ++j) sum = {sum.value + p_sums[j], sum.u + u_sums[j]};
  });
  Squares sum;
  for (const Squares& s : partial) sum = {sum.value + s.value, sum.u + s.u};
  const double numel = static_cast<double>(g.count * g.rows * g.columns);
  const double clipped = std::max(1.0, std::sqrt(sum.u / numel) / step.clip);
  const double scale = step.scale_by_value ? std::max(step.eps2, std::sqrt(sum.value / numel)) : 1;
  const T alpha = static_cast<T>(step.rate * scale / clipped), keep = static_cast<T>(1 - step.lr * step.weight_decay);
  for_rows(g, column_factors, [&](std::int64_t r, const T* columns) {
    T* __restrict__ const p = value + r * g.columns;
    const T* __restrict__ const x = g.grad + r * g.columns;
    const T factor = alpha * (row_factors[r] * g.grad_scale);
    for (std::int64_t c = 0; c < g.columns; ++c) p[c] = keep * p[c] - factor * (columns[c] * x[c]);
  });
}

}  // namespace

void adafactor_update(Tensor& value, const Tensor& grad, Tensor& rows, Tensor& columns, Tensor& v,
                      const AdafactorStep& step) {
  check_range("adafactor_update", {0, value.numel()}, value, grad);
  TAP_CHECK(static_cast<bool>(rows) == static_cast<bool>(columns) && static_cast<bool>(rows) != static_cast<bool>(v),
            "adafactor_update: either rows and columns or v must be given");
  if (value.numel() == 0) return;
  visit_float("adafactor_update", value.dtype(), [&]<class T>(TypeTag<T>) {
    const Shape& s = value.shape();
    const std::int64_t width = v ? value.numel() : s.back(), height = v ? 1 : s[s.rank() - 2];
    const Matrices<T> g{value.numel() / (width * height), height, width, grad.data<T>(),
                        static_cast<T>(step.grad_scale)};
    T* const p = value.mutable_data<T>();
    thread_local std::vector<T> scratch;
    scratch.resize(static_cast<std::size_t>(g.count * (height + width)));
    T *const row_factors = scratch.data(), *const column_factors = row_factors + g.count * height;
    if (v) {
      T* const all = v.mutable_data<T>();
      row_factors[0] = 1;
      for (std::int64_t i = 0; i < width; ++i) {
        const double x = step.grad_scale * static_cast<double>(g.grad[i]);
        all[i] = static_cast<T>(step.beta2 * static_cast<double>(all[i]) + (1 - step.beta2) * (x * x + step.eps1));
        column_factors[i] = static_cast<T>(1 / std::sqrt(static_cast<double>(all[i])));
      }
    } else {
      update_rows(g, rows.mutable_data<T>(), step);
      update_columns(g, columns.mutable_data<T>(), step);
      factors(g, rows.data<T>(), columns.data<T>(), row_factors, column_factors);
    }
    apply(g, p, row_factors, column_factors, step);
  });
}

}  // namespace tapestry::cpu
