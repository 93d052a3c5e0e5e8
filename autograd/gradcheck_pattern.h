// Used by the diagnosis of gradcheck: the analytic and the numeric Jacobian of one input as matrices, with the
// questions that the diagnosis asks about them. Rows are elements of the outputs, columns elements of the input.
#pragma once

#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autograd/gradcheck_diagnosis.h"

namespace tapestry::detail {

inline constexpr double kFit = 1e-6;  // of the largest entry; differences in double are good to about 1e-9

std::int64_t stride_of(const Shape& shape, int axis);
std::int64_t coordinate(const Shape& shape, std::size_t flat, int axis);
// order[j]: where element j of `shape` lies once axes a and b are exchanged and the result is read in order.
std::vector<std::size_t> transposed_order(const Shape& shape, int a, int b);
// NumPy's rule: does `from` broadcast to `to`, and which of its elements is used at `flat`.
bool broadcasts(const Shape& from, const Shape& to);
std::int64_t broadcast_index(const Shape& from, const Shape& to, std::size_t flat);
// The flat indices of every row along `axis`.
std::vector<std::vector<std::size_t>> groups_along(const Shape& shape, int axis);

struct Pattern {
  explicit Pattern(const Jacobian& jacobian);

  double a(std::size_t i, std::size_t j) const { return analytic[i * columns + j]; }
  double n(std::size_t i, std::size_t j) const { return numeric[i * columns + j]; }
  bool small(double difference) const { return std::abs(difference) <= kFit * scale; }

  // Is the analytic Jacobian proposed(i, j)?
  template <class F>
  bool fits(F proposed) const {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j)
        if (!small(a(i, j) - proposed(i, j))) return false;
    return true;
  }
  // Is the numeric one factor(i, j) times the analytic one?
  template <class F>
  bool fits_scaled(F factor) const {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j)
        if (!small(n(i, j) - factor(i, j) * a(i, j))) return false;
    return true;
  }

  bool finite() const;
  std::size_t nonzero() const;  // entries of the numeric Jacobian
  bool all_zero(const std::vector<double>& matrix) const;
  bool row_is_zero(const std::vector<double>& matrix, std::size_t i) const;
  bool column_is_zero(const std::vector<double>& matrix, std::size_t j) const;
  bool row_is_right(std::size_t i) const;
  bool column_is_right(std::size_t j) const;

  // The c for which c * numeric comes closest to analytic, in these rows or all.
  double best_factor(const std::vector<std::size_t>& in_rows) const;
  double best_factor() const;

  // Axes of the input along which a matrix does not change.
  std::set<int> constant_axes(const std::vector<double>& matrix) const;
  // Axes along which an output depends on elements at other indices; for an output of the input's shape.
  std::set<int> mixed_axes(const std::vector<double>& matrix) const;

  // Has numeric - analytic rank one?
  bool rank_one() const;
  // Does it couple only elements of one row along `axis`, with rank one there? Then what the columns are proportional
  // to, in words.
  std::optional<std::string> rank_one_along(int axis, const Tensor& output) const;

  const std::vector<double>&analytic, &numeric;
  const std::string& name;
  const Tensor& point;
  Shape shape;
  std::size_t rows, columns;
  double scale = 0;  // the largest entry
};

}  // namespace tapestry::detail
