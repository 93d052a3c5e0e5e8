// Learning-rate schedules. Every interpolation goes through mix(), which gives its end points exactly.
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/error.h"

namespace tapestry {

namespace {

void check_rate(const char* schedule, const char* argument, double rate) {
  TAP_CHECK(std::isfinite(rate) && rate >= 0, schedule, ": ", argument, " must be finite and at least 0, not ", rate);
}

void check_steps(const char* schedule, const char* argument, std::int64_t steps, std::int64_t least = 0) {
  TAP_CHECK(steps >= least, schedule, ": ", argument, " must be at least ", least, ", not ", steps);
}

// How much of `steps` is over, in [0, 1]; all of it where there are none.
double progress(double t, double steps) { return t >= steps ? 1 : std::max(t, 0.0) / steps; }

double mix(double from, double to, double weight) { return from * (1 - weight) + to * weight; }

double half_cosine(double from, double to, double weight) {
  return mix(from, to, (1 - std::cos(std::numbers::pi * weight)) / 2);
}

}  // namespace

Schedule constant(double rate) {
  check_rate("constant", "rate", rate);
  return [rate](std::int64_t) { return rate; };
}

Schedule warmup(std::int64_t steps, Schedule then) {
  check_steps("warmup", "steps", steps);
  TAP_CHECK(then, "warmup: needs the schedule that follows it, such as constant(3e-4)");
  return [steps, then = std::move(then)](std::int64_t t) {
    if (t >= steps) return then(t - steps);
    return then(0) * progress(static_cast<double>(t + 1), static_cast<double>(steps));
  };
}

Schedule cosine(double base, double end, std::int64_t steps) {
  check_rate("cosine", "base", base);
  check_rate("cosine", "end", end);
  check_steps("cosine", "steps", steps);
  return [=](std::int64_t t) {
    return half_cosine(base, end, progress(static_cast<double>(t), static_cast<double>(steps)));
  };
}

Schedule linear_decay(double base, double end, std::int64_t steps) {
  check_rate("linear_decay", "base", base);
  check_rate("linear_decay", "end", end);
  check_steps("linear_decay", "steps", steps);
  return [=](std::int64_t t) { return mix(base, end, progress(static_cast<double>(t), static_cast<double>(steps))); };
}

Schedule step_decay(double base, double factor, std::int64_t every) {
  check_rate("step_decay", "base", base);
  check_rate("step_decay", "factor", factor);
  check_steps("step_decay", "every", every, 1);
  return [=](std::int64_t t) { return base * std::pow(factor, static_cast<double>(t / every)); };
}

Schedule exponential(double base, double factor) {
  check_rate("exponential", "base", base);
  check_rate("exponential", "factor", factor);
  return [=](std::int64_t t) { return base * std::pow(factor, static_cast<double>(t)); };
}

Schedule noam(std::int64_t width, std::int64_t warmup_steps, double scale) {
  check_steps("noam", "width", width, 1);
  check_steps("noam", "warmup_steps", warmup_steps, 1);
  check_rate("noam", "scale", scale);
  const double peak = scale / std::sqrt(static_cast<double>(width)), rise = static_cast<double>(warmup_steps);
  return [=](std::int64_t t) {
    const double update = static_cast<double>(t + 1);
    return peak * std::min(1 / std::sqrt(update), update / (rise * std::sqrt(rise)));
  };
}

Schedule one_cycle(double base, std::int64_t steps, double rise, double div, double final_div) {
  check_rate("one_cycle", "base", base);
  check_steps("one_cycle", "steps", steps, 1);
  TAP_CHECK(rise >= 0 && rise <= 1, "one_cycle: rise is a part of the steps and must be in [0, 1], not ", rise);
  TAP_CHECK(std::isfinite(div) && div > 0, "one_cycle: div must be finite and above 0, not ", div);
  TAP_CHECK(std::isfinite(final_div) && final_div > 0, "one_cycle: final_div must be finite and above 0, not ",
            final_div);
  const double start = base / div, end = start / final_div;
  const double last = static_cast<double>(steps - 1), peak = std::max(rise * static_cast<double>(steps) - 1, 0.0);
  return [=](std::int64_t step) {
    const double t = static_cast<double>(step);
    if (t <= peak) return half_cosine(start, base, progress(t, peak));
    return half_cosine(base, end, progress(t - peak, last - peak));
  };
}

Schedule warmup_stable_decay(double base, double end, std::int64_t warmup_steps, std::int64_t stable_steps,
                             std::int64_t decay_steps) {
  check_steps("warmup_stable_decay", "warmup_steps", warmup_steps);
  check_steps("warmup_stable_decay", "stable_steps", stable_steps);
  check_steps("warmup_stable_decay", "decay_steps", decay_steps);
  const Schedule fall = linear_decay(base, end, decay_steps);
  return warmup(warmup_steps, [=](std::int64_t t) { return t < stable_steps ? base : fall(t - stable_steps); });
}

}  // namespace tapestry
