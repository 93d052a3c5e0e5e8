// What every benchmark measures with: repeated timings, and what this machine can do at best.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapestry::command {

double now();                  // seconds of a steady clock
double since_process_start();  // seconds; the kernel's clock ticks limit it to 10 ms

struct Timing {
  double median = 0, min = 0;  // seconds of one call
};
Timing timing_of(std::vector<double> seconds);

// Calls f() for about `seconds` and at least 5 times, after two calls that do not count.
Timing time_calls(const std::function<void()>& f, double seconds = 0.4);

// The limits of this machine with the current number of threads, in f32.
struct Peak {
  double gflops = 0;     // fused multiply-adds on registers only, two operations each
  double read_gbs = 0;   // 10^9 bytes/s when a large array is summed
  double write_gbs = 0;  // read and written bytes of y[i] += a x[i] on large arrays
};
Peak measure_peak();
double sum_once(const Tensor& x);  // reads an f32 tensor with every thread, as fast as it goes
std::string text(const Peak& peak);

}  // namespace tapestry::command
