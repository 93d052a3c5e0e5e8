// Learning-rate schedules: pure functions of the update number t = 0, 1, 2, ... that stay at their end value.
// Wrong arguments (a negative or non-finite rate, negative step counts) throw where the schedule is made.
#pragma once

#include <cstdint>
#include <functional>

namespace tapestry {

using Schedule = std::function<double(std::int64_t step)>;

Schedule constant(double rate);
// Update t uses then(0) * (t + 1) / steps for t < steps, then then(t - steps): never 0, exactly then(0) at the end.
Schedule warmup(std::int64_t steps, Schedule then);
// end + (base - end) (1 + cos(pi t / steps)) / 2 (Loshchilov & Hutter 2017, one period).
Schedule cosine(double base, double end, std::int64_t steps);
Schedule linear_decay(double base, double end, std::int64_t steps);
Schedule step_decay(double base, double factor, std::int64_t every);  // base * factor^floor(t / every)
Schedule exponential(double base, double factor);                     // base * factor^t
// scale * width^-0.5 * min((t + 1)^-0.5, (t + 1) * warmup_steps^-1.5) (Vaswani et al. 2017).
Schedule noam(std::int64_t width, std::int64_t warmup_steps, double scale = 1);
// Half cosines from base/div up to base at update rise * steps - 1, and down to base/div/final_div at update steps - 1
// (Smith & Topin 2018; PyTorch's OneCycleLR).
Schedule one_cycle(double base, std::int64_t steps, double rise = 0.3, double div = 25, double final_div = 1e4);
// Warm-up, stable, decay (Hu et al. 2024): linear rise as in warmup(), constant, linear fall to `end` in the last
// decay_steps.
Schedule warmup_stable_decay(double base, double end, std::int64_t warmup_steps, std::int64_t stable_steps,
                             std::int64_t decay_steps);

}  // namespace tapestry
