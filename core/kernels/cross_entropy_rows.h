// What cross-entropy from class indices, from distributions and nll share: options in the type of the logits, checked
// targets, and the loss and gradient of one row.
#pragma once

#include <cmath>

#include "core/kernels/cross_entropy.h"
#include "core/kernels/ids.h"
#include "core/kernels/mixed.h"
#include "core/kernels/rows.h"

namespace tapestry::cpu {

template <class T>
struct CrossEntropyTerms {
  Tensor wide;       // what `weights` points into
  const T* weights;  // null: all 1
  T keep, spread;    // 1 - s and s / V

  CrossEntropyTerms(const CrossEntropyOptions& o, std::int64_t classes)
      : wide(widened(o.class_weights)),
        weights(wide ? wide.data<T>() : nullptr),
        keep(static_cast<T>(1 - o.label_smoothing)),
        spread(static_cast<T>(o.label_smoothing / static_cast<double>(classes))) {}

  T weight(std::int64_t c) const { return weights ? weights[c] : T(1); }
  // Of `count` classes from c on, 0 in the lanes past them.
  simd::Vec<T> weight(std::int64_t c, std::int64_t count) const {
    static constexpr auto kOnes = [] {
      std::array<T, simd::kLanes<T>> ones;
      ones.fill(1);
      return ones;
    }();
    return simd::load_partial(weights ? weights + c : kOnes.data(), count);
  }
};

// Checks every target that counts and adds up what they weigh.
inline CrossEntropyCounts count_targets(const char* op, const Ids& targets, std::int64_t rows, std::int64_t classes,
                                        const CrossEntropyOptions& options) {
  const std::int64_t ignore_index = options.ignore_index;
  CrossEntropyCounts counts;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t target = targets[i];
    if (target == ignore_index) continue;
    TAP_CHECK(target >= 0 && target < classes, op, ": target ", target, " at flat position ", i, " must be in [0, ",
              classes, ") or equal ignore_index ", ignore_index,
              "; give logits a column for every class, or mark the position as ignored");
    ++counts.rows;
    if (!options.class_weights) continue;
    const double weight = options.class_weights.at(target);
    TAP_CHECK(weight >= 0, op, ": class weights must not be negative, but that of class ", target, " is ", weight);
    counts.weight += weight;
  }
  if (!options.class_weights) counts.weight = static_cast<double>(counts.rows);
  return counts;
}

// factor / divisor, or 0 where nothing counted.
inline double share_of(double factor, double divisor) { return divisor > 0 ? factor / divisor : 0; }

// {lse - max, max} of a row.
template <class T>
void write_row_stats(const T* z, std::int64_t n, T* stats) {
  stats[1] = row_shift(z, n);
  stats[0] = std::log(row_exp_sum(z, n, stats[1]));
}

// The sum over a row of a_c l_c; a(i, count) gives the factors, 0 in the lanes past the end.
template <class T, class Factors>
double spread_loss(const T* z, std::int64_t n, const T* stats, Factors a) {
  const T shift = stats[1];
  const auto sums = row_sums<T, 2>(n, [=](std::int64_t i, auto count) {
    const auto factor = a(i, count);
    const auto gap = shift - simd::load_partial(z + i, count, shift);
    return Vectors<T, 2>{factor, simd::select(factor == T(0), T(0), factor * gap)};
  });
  return sums[0] * stats[0] + sums[1];
}

// dz = total softmax(z) - a.
template <class T, class Factors>
void logits_gradient(const T* z, std::int64_t n, const T* stats, T total, Factors a, T* dz, bool add) {
  const T log_total = stats[0], shift = stats[1];
  for_each_vector<T>(n, [=](std::int64_t i, auto count) {
    const auto p = simd::exp((simd::load_partial(z + i, count) - shift) - log_total);
    write_vector(dz + i, p * total - a(i, count), count, add);
  });
}

// Adds up in row order.
inline double sum_of(const double* losses, std::int64_t rows) {
  double total = 0;
  for (std::int64_t row = 0; row < rows; ++row) total += losses[row];
  return total;
}

}  // namespace tapestry::cpu
