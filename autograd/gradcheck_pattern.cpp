// Jacobians as matrices: rows and columns that are right or zero, rank one, axes.
#include "autograd/gradcheck_pattern.h"

#include <algorithm>
#include <cmath>

namespace tapestry::detail {

std::int64_t stride_of(const Shape& shape, int axis) {
  std::int64_t stride = 1;
  for (int k = axis + 1; k < shape.rank(); ++k) stride *= shape[k];
  return stride;
}

std::int64_t coordinate(const Shape& shape, std::size_t flat, int axis) {
  return static_cast<std::int64_t>(flat) / stride_of(shape, axis) % shape[axis];
}

std::vector<std::size_t> transposed_order(const Shape& shape, int a, int b) {
  std::vector<int> axes;
  for (int k = 0; k < shape.rank(); ++k) axes.push_back(k == a ? b : k == b ? a : k);
  std::vector<std::size_t> order(static_cast<std::size_t>(shape.numel()));
  for (std::size_t j = 0; j < order.size(); ++j) {
    auto rest = static_cast<std::int64_t>(j);
    std::int64_t from = 0;
    for (int k = shape.rank() - 1; k >= 0; --k) {
      const int axis = axes[static_cast<std::size_t>(k)];
      from += rest % shape[axis] * stride_of(shape, axis);
      rest /= shape[axis];
    }
    order[j] = static_cast<std::size_t>(from);
  }
  return order;
}

bool broadcasts(const Shape& from, const Shape& to) {
  if (from.rank() > to.rank()) return false;
  for (int k = 1; k <= from.rank(); ++k) {
    const std::int64_t extent = from[from.rank() - k];
    if (extent != 1 && extent != to[to.rank() - k]) return false;
  }
  return true;
}

std::int64_t broadcast_index(const Shape& from, const Shape& to, std::size_t flat) {
  std::int64_t index = 0;
  for (int k = 0; k < from.rank(); ++k)
    if (from[k] != 1) index += coordinate(to, flat, to.rank() - from.rank() + k) * stride_of(from, k);
  return index;
}

std::vector<std::vector<std::size_t>> groups_along(const Shape& shape, int axis) {
  std::vector<std::vector<std::size_t>> groups;
  const auto size = static_cast<std::size_t>(shape.numel());
  for (std::size_t first = 0; first < size; ++first) {
    if (coordinate(shape, first, axis) != 0) continue;
    groups.emplace_back();
    for (std::int64_t k = 0; k < shape[axis]; ++k)
      groups.back().push_back(first + static_cast<std::size_t>(k * stride_of(shape, axis)));
  }
  return groups;
}

Pattern::Pattern(const Jacobian& jacobian)
    : analytic(jacobian.analytic),
      numeric(jacobian.numeric),
      name(jacobian.name),
      point(jacobian.point),
      shape(jacobian.point.shape()),
      rows(0),
      columns(static_cast<std::size_t>(shape.numel())) {
  if (columns > 0) rows = numeric.size() / columns;
  for (double v : numeric) scale = std::max(scale, std::abs(v));
  for (double v : analytic) scale = std::max(scale, std::abs(v));
}

bool Pattern::finite() const {
  auto is_finite = [](double v) { return std::isfinite(v); };
  return std::all_of(numeric.begin(), numeric.end(), is_finite) &&
         std::all_of(analytic.begin(), analytic.end(), is_finite);
}

std::size_t Pattern::nonzero() const {
  return static_cast<std::size_t>(std::count_if(numeric.begin(), numeric.end(), [&](double v) { return !small(v); }));
}

bool Pattern::all_zero(const std::vector<double>& matrix) const {
  return std::all_of(matrix.begin(), matrix.end(), [&](double v) { return small(v); });
}

bool Pattern::row_is_zero(const std::vector<double>& matrix, std::size_t i) const {
  for (std::size_t j = 0; j < columns; ++j)
    if (!small(matrix[i * columns + j])) return false;
  return true;
}

bool Pattern::column_is_zero(const std::vector<double>& matrix, std::size_t j) const {
  for (std::size_t i = 0; i < rows; ++i)
    if (!small(matrix[i * columns + j])) return false;
  return true;
}

bool Pattern::row_is_right(std::size_t i) const {
  for (std::size_t j = 0; j < columns; ++j)
    if (!small(a(i, j) - n(i, j))) return false;
  return true;
}

bool Pattern::column_is_right(std::size_t j) const {
  for (std::size_t i = 0; i < rows; ++i)
    if (!small(a(i, j) - n(i, j))) return false;
  return true;
}

double Pattern::best_factor(const std::vector<std::size_t>& in_rows) const {
  double both = 0, squares = 0;
  for (std::size_t i : in_rows) {
    for (std::size_t j = 0; j < columns; ++j) {
      both += a(i, j) * n(i, j);
      squares += n(i, j) * n(i, j);
    }
  }
  return squares > 0 ? both / squares : 0;
}

double Pattern::best_factor() const {
  std::vector<std::size_t> all(rows);
  for (std::size_t i = 0; i < rows; ++i) all[i] = i;
  return best_factor(all);
}

std::set<int> Pattern::constant_axes(const std::vector<double>& matrix) const {
  std::set<int> axes;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    bool constant = shape[axis] > 1;
    for (std::size_t j = 0; j < columns; ++j) {
      const std::size_t first = j - static_cast<std::size_t>(coordinate(shape, j, axis) * stride_of(shape, axis));
      for (std::size_t i = 0; i < rows && constant; ++i)
        constant = small(matrix[i * columns + j] - matrix[i * columns + first]);
    }
    if (constant) axes.insert(axis);
  }
  return axes;
}

std::set<int> Pattern::mixed_axes(const std::vector<double>& matrix) const {
  std::set<int> axes;
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j)
      for (int axis = 0; axis < shape.rank() && !small(matrix[i * columns + j]); ++axis)
        if (coordinate(shape, i, axis) != coordinate(shape, j, axis)) axes.insert(axis);
  return axes;
}

namespace {

// A row of numeric - analytic among these indices if that has rank one, else nothing.
std::optional<std::vector<double>> rank_one_of(const Pattern& p, const std::vector<std::size_t>& rows,
                                               const std::vector<std::size_t>& columns) {
  auto difference = [&](std::size_t i, std::size_t j) { return p.n(i, j) - p.a(i, j); };
  std::size_t pivot_row = rows[0], pivot_column = columns[0];
  for (std::size_t i : rows)
    for (std::size_t j : columns)
      if (std::abs(difference(i, j)) > std::abs(difference(pivot_row, pivot_column))) {
        pivot_row = i;
        pivot_column = j;
      }
  const double pivot = difference(pivot_row, pivot_column);
  std::vector<double> result(columns.size());
  if (p.small(pivot)) return result;
  for (std::size_t i : rows)
    for (std::size_t j : columns)
      if (!p.small(difference(i, j) - difference(i, pivot_column) * difference(pivot_row, j) / pivot)) return {};
  for (std::size_t k = 0; k < columns.size(); ++k) result[k] = difference(pivot_row, columns[k]);
  return result;
}

bool proportional(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    ab += a[k] * b[k];
    aa += a[k] * a[k];
    bb += b[k] * b[k];
  }
  return aa == 0 || (bb > 0 && 1 - ab * ab / (aa * bb) < 1e-9);
}

}  // namespace

bool Pattern::rank_one() const {
  std::vector<std::size_t> all_rows(rows), all_columns(columns);
  for (std::size_t i = 0; i < rows; ++i) all_rows[i] = i;
  for (std::size_t j = 0; j < columns; ++j) all_columns[j] = j;
  std::size_t differing_rows = 0, differing_columns = 0;
  for (std::size_t i = 0; i < rows; ++i) differing_rows += !row_is_right(i);
  for (std::size_t j = 0; j < columns; ++j) differing_columns += !column_is_right(j);
  return differing_rows >= 3 && differing_columns >= 3 && rank_one_of(*this, all_rows, all_columns).has_value();
}

std::optional<std::string> Pattern::rank_one_along(int axis, const Tensor& output) const {
  if (shape[axis] < 3) return {};
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j)
      for (int other = 0; other < shape.rank(); ++other)
        if (other != axis && coordinate(shape, i, other) != coordinate(shape, j, other) && !small(a(i, j) - n(i, j)))
          return {};
  bool any = false, constant = true, like_output = true, like_centred = true;
  for (const std::vector<std::size_t>& group : groups_along(shape, axis)) {
    const std::optional<std::vector<double>> found = rank_one_of(*this, group, group);
    if (!found) return {};
    const auto coupled = std::count_if(found->begin(), found->end(), [&](double v) { return !small(v); });
    if (coupled == 1) return {};  // a wrong entry of its own
    any |= coupled > 1;
    std::vector<double> ones(group.size(), 1), y, centred;
    double mean = 0;
    for (std::size_t j : group) mean += point.at(static_cast<std::int64_t>(j)) / static_cast<double>(group.size());
    for (std::size_t j : group) {
      y.push_back(output.at(static_cast<std::int64_t>(j)));
      centred.push_back(point.at(static_cast<std::int64_t>(j)) - mean);
    }
    constant &= proportional(*found, ones);
    like_output &= proportional(*found, y);
    like_centred &= proportional(*found, centred);
  }
  if (!any) return {};
  return constant       ? "a constant, as the mean of dy in a normalisation"
         : like_output  ? "the output, as y * sum(dy * y) in softmax and normalisations"
         : like_centred ? "x - mean, as in a normalisation"
                        : "a vector";
}

}  // namespace tapestry::detail
