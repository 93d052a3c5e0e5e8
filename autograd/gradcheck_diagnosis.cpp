// Each test below proposes a gradient A' made from the numeric Jacobian N the way a common mistake would make it, and
// fits if A' equals the analytic Jacobian A up to kFit of the largest entry. The first that fits is the diagnosis, so
// the order goes from simple mistakes to structural ones.
#include "autograd/gradcheck_diagnosis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>

#include "autograd/gradcheck_pattern.h"

namespace tapestry::detail {
namespace {

using Kind = GradcheckDiagnosis;

std::string axis_text(int axis) { return text_of("axis ", axis); }

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// ---- one number for all entries

// "3 is the extent of axis 0 of input 0", for a factor that is n, 1/n, sqrt(n) or 1/sqrt(n) of something.
std::string meaning_of(double factor, const Evidence& e) {
  struct Form {
    const char* before;
    double n;
    bool root;
  };
  auto close = [](double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); };
  const Form forms[] = {{"", factor, false},
                        {"1/", 1 / factor, false},
                        {"sqrt of ", factor * factor, true},
                        {"1/sqrt of ", 1 / (factor * factor), true}};
  const bool two = close(factor, 2) || close(factor, 0.5);  // says enough; sqrt(4) would mislead
  for (const Form& form : forms) {
    if (two && form.root) break;
    auto named = [&](const std::string& tensor, const Tensor& t) -> std::string {
      for (int axis = 0; axis < t.shape().rank(); ++axis)
        if (t.shape()[axis] > 1 && close(form.n, static_cast<double>(t.shape()[axis])))
          return text_of("; it is ", form.before, t.shape()[axis], ", the extent of axis ", axis, " of ", tensor);
      if (t.numel() > 1 && close(form.n, static_cast<double>(t.numel())))
        return text_of("; it is ", form.before, t.numel(), ", the number of elements of ", tensor);
      return {};
    };
    for (const Jacobian& input : e.inputs)
      if (std::string text = named(input.name, input.point); !text.empty()) return text;
    for (std::size_t k = 0; k < e.outputs.size(); ++k)
      if (std::string text = named(text_of("output ", k), e.outputs[k]); !text.empty()) return text;
  }
  return {};
}

Diagnosis one_factor(const Pattern& p, const Evidence& e) {
  if (p.all_zero(p.analytic))
    return {Kind::zero_gradient, text_of("no gradient arrives at ", p.name,
                                         " although the outputs depend on it: a branch was dropped, detached or not "
                                         "recorded")};
  const double factor = p.best_factor();
  if (!p.fits([&](auto i, auto j) { return factor * p.n(i, j); })) return {};
  if (std::abs(factor + 1) < kFit)
    return {Kind::sign_flipped, text_of("the gradient of ", p.name, " has the wrong sign everywhere")};
  const std::string meaning = meaning_of(factor, e);
  const bool nice = !meaning.empty() || std::abs(factor - 2) < kFit || std::abs(factor - 0.5) < kFit;
  if (p.nonzero() < 2 && !nice) return {};
  return {Kind::constant_factor,
          text_of("the gradient of ", p.name, " is ", short_number(factor), " times the right one everywhere", meaning,
                  ": a scale was forgotten or applied twice")};
}

Diagnosis one_power(const Pattern& p) {
  struct Form {
    double power;
    const char* text;
  };
  constexpr Form kForms[] = {{0.5, "the square root"}, {2, "the square"}, {-1, "the reciprocal"}};
  if (p.nonzero() < 3) return {};
  for (const Form& form : kForms)
    if (p.fits([&](auto i, auto j) {
          const double n = p.n(i, j);
          return p.small(n) ? 0 : std::copysign(std::pow(std::abs(n), form.power), n);
        }))
      return {Kind::wrong_power,
              text_of("every entry of the gradient of ", p.name, " is ", form.text, " of the right one")};
  return {};
}

Diagnosis other_input(const Pattern& p, const Evidence& e, std::size_t wrong) {
  for (std::size_t m = 0; m < e.inputs.size(); ++m)
    if (m != wrong && e.inputs[m].numeric.size() == p.analytic.size() &&
        p.fits([&](auto i, auto j) { return e.inputs[m].numeric[i * p.columns + j]; }))
      return {Kind::wrong_input, text_of("what ", p.name, " got is the gradient of ", e.inputs[m].name,
                                         ": gradients were written to the wrong inputs")};
  return {};
}

// ---- the right numbers at the wrong place

Diagnosis swapped_axes(const Pattern& p) {
  const Shape& s = p.shape;
  for (int b = s.rank() - 1; b > 0; --b) {
    for (int a = b - 1; a >= 0; --a) {
      // Either equal extents, or the memory of the transposed tensor read as this one.
      const std::vector<std::size_t> from = transposed_order(s, a, b);
      if (p.fits([&](auto i, auto j) { return p.n(i, from[j]); }))
        return {Kind::transposed,
                text_of("the gradient of ", p.name, " is transposed: axes ", a, " and ", b, " are exchanged")};
    }
  }
  if (p.rows == p.columns && p.fits([&](auto i, auto j) { return p.n(j, i); }))
    return {Kind::transposed, text_of("the gradient of ", p.name,
                                      " is J dy instead of J^T dy: a matrix stands where its transpose is due, or a "
                                      "sum runs from the wrong end")};
  return {};
}

Diagnosis moved_along_axis(const Pattern& p) {
  for (int axis = 0; axis < p.shape.rank(); ++axis) {
    const std::int64_t extent = p.shape[axis], stride = stride_of(p.shape, axis);
    auto taken_from = [&](std::size_t j, std::int64_t index) {
      return j + static_cast<std::size_t>((index - coordinate(p.shape, j, axis)) * stride);
    };
    if (p.fits([&](auto i, auto j) { return p.n(i, taken_from(j, extent - 1 - coordinate(p.shape, j, axis))); }))
      return {Kind::misplaced, text_of("the gradient of ", p.name, " is reversed along ", axis_text(axis))};
    for (std::int64_t shift = 1; shift < extent; ++shift)
      if (p.fits([&](auto i, auto j) {
            return p.n(i, taken_from(j, (coordinate(p.shape, j, axis) + extent - shift) % extent));
          }))
        return {Kind::misplaced, text_of("the gradient of ", p.name, " is shifted by ",
                                         shift <= extent / 2 ? shift : shift - extent, " along ", axis_text(axis))};
  }
  return {};
}

// ---- part of the gradient is missing

// If `kept` are exactly the flat indices with one coordinate along one axis of `shape`: "index 2 of axis 0".
std::optional<std::string> slice_text(const Shape& shape, const std::vector<bool>& kept) {
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] < 2) continue;
    for (std::int64_t index = 0; index < shape[axis]; ++index) {
      bool exact = true;
      for (std::size_t k = 0; k < kept.size(); ++k) exact &= kept[k] == (coordinate(shape, k, axis) == index);
      if (exact) return text_of("index ", index, " of ", axis_text(axis));
    }
  }
  return {};
}

// Some outputs pass their whole gradient on and the others nothing.
Diagnosis lost_outputs(const Pattern& p, const Evidence& e) {
  std::vector<bool> kept(p.rows), lost(p.rows);
  for (std::size_t i = 0; i < p.rows; ++i) {
    lost[i] = p.row_is_zero(p.analytic, i) && !p.row_is_zero(p.numeric, i);
    if (!lost[i] && !p.row_is_right(i)) return {};
    kept[i] = !lost[i] && !p.row_is_zero(p.numeric, i);
  }
  std::size_t begin = 0;
  for (std::size_t k = 0; k < e.outputs.size(); ++k) {
    const auto size = static_cast<std::size_t>(e.outputs[k].numel());
    const std::vector<bool> here(kept.begin() + static_cast<std::ptrdiff_t>(begin),
                                 kept.begin() + static_cast<std::ptrdiff_t>(begin + size));
    const bool any_lost =
        std::any_of(lost.begin() + static_cast<std::ptrdiff_t>(begin),
                    lost.begin() + static_cast<std::ptrdiff_t>(begin + size), [](bool b) { return b; });
    begin += size;
    if (!any_lost) continue;
    if (std::find(here.begin(), here.end(), true) == here.end())
      return {Kind::zero_gradient,
              text_of("nothing of what arrives at output ", k, " is passed on to ", p.name, ": a branch was dropped")};
    if (const auto slice = slice_text(e.outputs[k].shape(), here))
      return {Kind::missing_sum, text_of("only ", *slice, " of output ", k, " contributes to the gradient of ", p.name,
                                         ": sum over that axis, along which the input is broadcast")};
  }
  for (std::size_t j = 0; j < p.columns; ++j) {
    bool from_kept = false, from_lost = false;
    for (std::size_t i = 0; i < p.rows; ++i) (lost[i] ? from_lost : from_kept) |= !p.small(p.n(i, j));
    if (from_lost && !from_kept) return {};
  }
  return {Kind::missing_sum, text_of("where several output elements share an element of ", p.name,
                                     ", only one of them contributes: add their gradients instead of overwriting")};
}

Diagnosis lost_elements(const Pattern& p) {
  std::vector<bool> kept(p.columns);
  for (std::size_t j = 0; j < p.columns; ++j) {
    kept[j] = p.column_is_right(j);
    if (!kept[j] && !p.column_is_zero(p.analytic, j)) return {};
  }
  const auto slice = slice_text(p.shape, kept);
  if (slice) return {Kind::missing_slice, text_of("only ", *slice, " of ", p.name, " gets its gradient, the rest 0")};
  kept.flip();
  const auto rest = slice_text(p.shape, kept);
  if (!rest) return {};
  return {Kind::missing_slice, text_of(*rest, " of ", p.name, " gets no gradient; the rest is right")};
}

// ---- a factor that varies

Diagnosis tensor_factor(const Pattern& p, const Evidence& e) {
  auto tried = [&](const std::string& name, const Tensor& u) -> Diagnosis {
    for (const bool by_output : {true, false}) {
      if (by_output && e.outputs.size() != 1) continue;
      const Shape& to = by_output ? e.outputs[0].shape() : p.shape;
      if (!broadcasts(u.shape(), to)) continue;
      auto value = [&](std::size_t i, std::size_t j) {
        return u.at(broadcast_index(u.shape(), to, by_output ? i : j));
      };
      for (const int power : {1, 2}) {
        const char* square = power == 2 ? "the square of " : "";
        if (p.fits_scaled([&](auto i, auto j) { return std::pow(value(i, j), power); }))
          return {Kind::missing_factor,
                  text_of("the gradient of ", p.name, " lacks a factor: multiply it by ", square, name)};
        if (p.fits([&](auto i, auto j) { return p.n(i, j) * std::pow(value(i, j), power); }))
          return {Kind::missing_factor,
                  text_of("the gradient of ", p.name, " has a factor too many: divide it by ", square, name)};
      }
    }
    return {};
  };
  for (const Jacobian& input : e.inputs)
    if (Diagnosis d = tried(input.name, input.point)) return d;
  for (std::size_t k = 0; k < e.outputs.size(); ++k)
    if (Diagnosis d = tried(text_of("output ", k), e.outputs[k])) return d;
  return {};
}

// One factor for each row along an axis of the only output, as 1/std of a normalisation.
Diagnosis factor_per_row(const Pattern& p, const Evidence& e) {
  if (e.outputs.size() != 1) return {};
  const Shape& s = e.outputs[0].shape();
  for (int axis = s.rank() - 1; axis >= 0; --axis) {
    if (s[axis] < 2 || s[axis] == s.numel()) continue;
    double low = 0, high = 0;
    bool fits = true, first = true;
    for (const std::vector<std::size_t>& group : groups_along(s, axis)) {
      const double factor = p.best_factor(group);
      std::size_t entries = 0;
      for (std::size_t i : group) {
        for (std::size_t j = 0; j < p.columns; ++j) {
          fits &= p.small(p.a(i, j) - factor * p.n(i, j));
          entries += !p.small(p.n(i, j));
        }
      }
      fits &= entries >= 3;
      low = first ? factor : std::min(low, factor);
      high = first ? factor : std::max(high, factor);
      first = false;
    }
    if (fits)
      return {Kind::missing_factor, text_of("the gradient of ", p.name, " is off by one factor for each row along ",
                                            axis_text(axis), " (", short_number(low), " to ", short_number(high),
                                            "): a scale computed for each row, such as 1/std, was forgotten")};
  }
  return {};
}

// The derivative, but somewhere else.
Diagnosis at_other_value(const Pattern& p, const Evidence& e, std::size_t wrong) {
  for (std::size_t moved = 0; moved < e.inputs.size(); ++moved) {
    auto tried = [&](const std::string& name, const Tensor& value) -> Diagnosis {
      if (!(value.shape() == e.inputs[moved].point.shape())) return {};
      std::vector<double> there;
      try {
        there = e.numeric_at(wrong, moved, value);
      } catch (const Error&) {
        return {};
      }
      if (!p.fits([&](auto i, auto j) { return there[i * p.columns + j]; })) return {};
      return {Kind::stale_value,
              text_of("the gradient of ", p.name, " is the derivative where ", e.inputs[moved].name, " equals ", name,
                      ": the saved tensor was overwritten, or the wrong one was saved")};
    };
    for (std::size_t k = 0; k < e.outputs.size(); ++k)
      if (Diagnosis d = tried(text_of("output ", k), e.outputs[k])) return d;
    for (std::size_t m = 0; m < e.inputs.size(); ++m)
      if (m != moved)
        if (Diagnosis d = tried(e.inputs[m].name, e.inputs[m].point)) return d;
  }
  return {};
}

// ---- structure

Diagnosis wrong_axis(const Pattern& p, const Evidence& e) {
  const std::set<int> flat_right = p.constant_axes(p.numeric), flat_ours = p.constant_axes(p.analytic);
  if (flat_right.size() == 1 && flat_ours.size() == 1 && flat_right != flat_ours)
    return {Kind::wrong_axis, text_of("the gradient of ", p.name, " is the same along ", axis_text(*flat_ours.begin()),
                                      ", but must be so along ", axis_text(*flat_right.begin()),
                                      ": dy was expanded along the wrong axis")};
  if (e.outputs.size() != 1 || !(e.outputs[0].shape() == p.shape)) return {};
  const std::set<int> mixed_right = p.mixed_axes(p.numeric), mixed_ours = p.mixed_axes(p.analytic);
  if (mixed_right.size() != 1 || mixed_ours.size() != 1 || mixed_right == mixed_ours) return {};
  return {Kind::wrong_axis,
          text_of("the gradient of ", p.name, " mixes elements along ", axis_text(*mixed_ours.begin()),
                  ", but the outputs mix them along ", axis_text(*mixed_right.begin()))};
}

Diagnosis missing_term(const Pattern& p, const Evidence& e) {
  if (p.rows < 3 || p.columns < 3) return {};
  if (p.rows == p.columns) {
    const double c = p.n(0, 0) - p.a(0, 0);
    if (p.fits([&](auto i, auto j) { return p.n(i, j) - (i == j ? c : 0); }))
      return {Kind::missing_term, text_of("the gradient of ", p.name, " lacks ", short_number(c),
                                          " * dy: a direct path, such as a residual connection, was forgotten")};
  }
  if (e.outputs.size() == 1 && e.outputs[0].shape() == p.shape) {
    for (int axis = p.shape.rank() - 1; axis >= 0; --axis) {
      const std::optional<std::string> vector = p.rank_one_along(axis, e.outputs[0]);
      if (vector)
        return {Kind::missing_term,
                text_of("one term of the gradient of ", p.name, " is missing or wrong: a sum over ", axis_text(axis),
                        " of dy times something, times ", *vector, " (the difference has rank one in each row)")};
    }
  }
  if (!p.rank_one()) return {};
  return {Kind::missing_term, text_of("one term of the gradient of ", p.name,
                                      " is missing or wrong: one sum over all of dy (the difference has rank one)")};
}

// All wrong elements lie at one index of an axis, or on one side of a value.
Diagnosis part_is_wrong(const Pattern& p) {
  std::vector<bool> wrong(p.columns);
  for (std::size_t j = 0; j < p.columns; ++j) wrong[j] = !p.column_is_right(j);
  if (const auto slice = slice_text(p.shape, wrong))
    return {Kind::wrong_slice, text_of("the gradient of ", p.name, " is wrong at ", *slice,
                                       " and right elsewhere: look at how the border is treated")};
  std::vector<double> bad, good;
  for (std::size_t j = 0; j < p.columns; ++j)
    (wrong[j] ? bad : good).push_back(p.point.at(static_cast<std::int64_t>(j)));
  if (bad.size() < 2 || good.size() < 2 || bad.size() + good.size() < 8) return {};
  const auto [bad_low, bad_high] = std::minmax_element(bad.begin(), bad.end());
  const auto [good_low, good_high] = std::minmax_element(good.begin(), good.end());
  if (*bad_high < *good_low)
    return {Kind::wrong_region,
            text_of("the gradient of ", p.name, " is wrong where its value is below ", short_number(*good_low),
                    " (up to ", short_number(*bad_high), ") and right above: look at that branch")};
  if (*bad_low > *good_high)
    return {Kind::wrong_region,
            text_of("the gradient of ", p.name, " is wrong where its value is above ", short_number(*good_high),
                    " (from ", short_number(*bad_low), ") and right below: look at that branch")};
  return {};
}

}  // namespace

Diagnosis diagnose(const Evidence& e, std::size_t wrong) {
  const Pattern p(e.inputs[wrong]);
  if (p.columns == 0 || p.rows == 0 || !p.finite()) return {};
  Diagnosis d = one_factor(p, e);
  auto next = [&](auto&& test) {
    if (!d) d = test();
  };
  next([&] { return other_input(p, e, wrong); });
  next([&] { return one_power(p); });
  next([&] { return swapped_axes(p); });
  next([&] { return moved_along_axis(p); });
  next([&] { return lost_outputs(p, e); });
  next([&] { return lost_elements(p); });
  next([&] { return factor_per_row(p, e); });
  next([&] { return at_other_value(p, e, wrong); });
  next([&] { return tensor_factor(p, e); });
  next([&] { return wrong_axis(p, e); });
  next([&] { return missing_term(p, e); });
  next([&] { return part_is_wrong(p); });
  return d;
}

}  // namespace tapestry::detail
