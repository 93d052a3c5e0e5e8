// Initial weights. A matrix is [in, out], a weight of rank 3 or more that of a convolution: [out, in / groups,
// taps...]. fan_in is what one output sums over, fan_out what one input feeds (with one group; the shape does not tell
// groups). Rank below 2 throws (no fan); an extent of 0 leaves nothing to fill.
#pragma once

#include "autograd/parameter.h"
#include "core/random.h"

namespace tapestry::init {

struct Fans {
  std::int64_t in, out;
};
Fans fans(const Shape& weight);  // [in, out], or [out, in / groups, taps...]: either channel count times the taps

enum class Mode { fan_in, fan_out };

void zeros(Parameter& p);
void constant(Parameter& p, double value);
void uniform(Parameter& p, Rng& rng, double low, double high);
void normal(Parameter& p, Rng& rng, double std = 0.02, double mean = 0);
// Normals that exceed `cut` std are drawn again; the result has a std of 0.88 std at cut 2. cut must be at least 0.1.
void truncated_normal(Parameter& p, Rng& rng, double std = 0.02, double cut = 2);
// Glorot & Bengio 2010: bound gain sqrt(6 / (in + out)); std gain sqrt(2 / (in + out)).
void xavier_uniform(Parameter& p, Rng& rng, double gain = 1);
void xavier_normal(Parameter& p, Rng& rng, double gain = 1);
// He et al. 2015, for relu: std sqrt(2 / fan), uniform bound sqrt(6 / fan).
void kaiming_uniform(Parameter& p, Rng& rng, Mode mode = Mode::fan_in);
void kaiming_normal(Parameter& p, Rng& rng, Mode mode = Mode::fan_in);
// Saxe et al. 2013: gain times a random matrix with orthonormal columns or, if there are more of them than rows,
// orthonormal rows; uniform over all of these. Axes behind the first count as columns.
void orthogonal(Parameter& p, Rng& rng, double gain = 1);
// GPT-2's projections into the residual stream: std 0.02 / sqrt(2 layers).
void gpt2_residual(Parameter& p, Rng& rng, std::int64_t layers);

}  // namespace tapestry::init
