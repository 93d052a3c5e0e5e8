#include "measure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>

#include "core/kernels/simd.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace tapestry::command {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double since_process_start() {
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  const std::string line{std::istreambuf_iterator<char>(stat), {}};
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  constexpr int kStartTime = 20;  // counted after the name, which may hold anything
  for (int i = 0; i < kStartTime; ++i) fields >> field;
  double up = 0;
  uptime >> up;
  return fields && uptime ? up - std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK)) : 0;
}

Timing timing_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const std::size_t middle = seconds.size() / 2;
  return {seconds.size() % 2 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2, seconds.front()};
}

Timing time_calls(const std::function<void()>& f, double seconds) {
  f();
  f();
  std::vector<double> times;
  for (const double start = now(); times.size() < 5 || now() - start < seconds;) {
    const double begin = now();
    f();
    times.push_back(now() - begin);
  }
  return timing_of(std::move(times));
}

namespace {

// Independent chains of fused multiply-adds: as many as it takes to fill two pipelines of latency 4 to 5.
void multiply_add_chains(std::int64_t rounds, float* result) {
  using simd::Vec;
  constexpr int kChains = 12;
  Vec<float> sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = simd::splat(static_cast<float>(c));
  Vec<float> factor = simd::splat(0.999f), term = simd::splat(0.001f);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = sums[c] * factor + term;
    asm volatile("" : "+x"(factor), "+x"(term));
  }
  for (int c = 1; c < kChains; ++c) sums[0] += sums[c];
  *result = simd::sum(sums[0]);
}

double measure_gflops() {
  constexpr std::int64_t kRounds = 1 << 18;
  constexpr double kOperations = 2.0 * kRounds * 12 * simd::kLanes<float>;
  const int threads = num_threads();
  std::vector<float> results(static_cast<std::size_t>(threads) * 16);
  const Timing t = time_calls([&] {
    parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        multiply_add_chains(kRounds, &results[static_cast<std::size_t>(i) * 16]);
    });
  });
  return kOperations * threads / t.min * 1e-9;
}

constexpr std::int64_t kLargeArray = 64 << 20;  // elements: 256 MiB, far beyond any cache

double measure_read(const Tensor& x) {
  const Timing t = time_calls([&] { sum_once(x); });
  return 4.0 * kLargeArray / t.min * 1e-9;
}

double measure_write(const Tensor& x, Tensor& y) {
  const float* from = x.data<float>();
  float* to = y.mutable_data<float>();
  const Timing t = time_calls([&] {
    parallel_for(kLargeArray, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] += 0.5f * from[i];
    });
  });
  return 12.0 * kLargeArray / t.min * 1e-9;
}

}  // namespace

double sum_once(const Tensor& x) {
  constexpr std::int64_t kBlock = 1 << 14;
  const float* p = x.data<float>();
  const std::int64_t blocks = x.numel() / kBlock;  // what is left over is too little to matter
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      simd::Vec<float> sum[4] = {};
      for (std::int64_t i = block * kBlock; i < (block + 1) * kBlock; i += 4 * simd::kLanes<float>)
        for (int v = 0; v < 4; ++v) sum[v] += simd::load(p + i + v * simd::kLanes<float>);
      sums[static_cast<std::size_t>(block)] = simd::sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

Peak measure_peak() {
  const Tensor x = full({kLargeArray}, 1);
  Tensor y = full({kLargeArray + 1024}, 1);  // not a multiple of the page size away from x
  return {measure_gflops(), measure_read(x), measure_write(x, y)};
}

std::string text(const Peak& peak) {
  return fmt::format(
      "machine: {} threads, {:.0f} GFLOP/s of multiply-adds, {:.1f} GB/s read, {:.1f} GB/s read and written",
      num_threads(), peak.gflops, peak.read_gbs, peak.write_gbs);
}

}  // namespace tapestry::command
