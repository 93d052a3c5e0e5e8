// Micro-benchmarks of what every op is made of: recording, allocating, waking threads, small kernels.
//   build/release/tests/bench/bench_micro --benchmark_filter=tape
#include <benchmark/benchmark.h>

#include "autograd/ops.h"
#include "core/kernels/gemm.h"
#include "core/parallel.h"
#include "core/random.h"

using namespace tapestry;

namespace {

void tape_chain(benchmark::State& state) {
  const Tensor x = full({1}, 1);
  for (auto _ : state) {
    Tape tape;
    Var y = tape.watch(x);
    for (int i = 0; i < 100; ++i) y = neg(y);
    tape.backward(y);
  }
  state.SetItemsProcessed(state.iterations() * 100);
}
BENCHMARK(tape_chain);

void allocate_and_free(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(empty({state.range(0)}));
}
BENCHMARK(allocate_and_free)->Arg(1)->Arg(1 << 20);

void wake_threads(benchmark::State& state) {
  for (auto _ : state) parallel_for(num_threads(), 1, [](std::int64_t, std::int64_t) {});
}
BENCHMARK(wake_threads)->UseRealTime();

void philox_run(benchmark::State& state) {
  std::uint32_t bits[kRandomRun];
  for (auto _ : state) {
    random_run(RandomKey{1, 2}, 0, bits);
    benchmark::DoNotOptimize(bits[0]);
  }
  state.SetItemsProcessed(state.iterations() * kRandomRun);
}
BENCHMARK(philox_run);

// From the first level cache: what the arithmetic alone costs.
void unary(benchmark::State& state, Var (*op)(const Var&)) {
  Tensor x = empty({2048});
  fill_normal(x, 0, 1, RandomKey{1, 1});
  for (auto _ : state) benchmark::DoNotOptimize(op(x));
  state.SetItemsProcessed(state.iterations() * x.numel());
}
BENCHMARK_CAPTURE(unary, neg, neg);
BENCHMARK_CAPTURE(unary, exp, exp);
BENCHMARK_CAPTURE(unary, tanh, tanh);
BENCHMARK_CAPTURE(unary, erf, erf);
BENCHMARK_CAPTURE(unary, gelu, gelu);
BENCHMARK_CAPTURE(unary, gelu_tanh, gelu_tanh);
BENCHMARK_CAPTURE(unary, log, log);

void gemm_of_one_thread(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Tensor a = full({n, n}, 1), b = full({n, n}, 1), c = empty({n, n});
  const Gemm<float> product{.m = n,
                            .n = n,
                            .k = n,
                            .a = a.data<float>(),
                            .b = b.data<float>(),
                            .c = c.mutable_data<float>(),
                            .lda = n,
                            .ldb = n,
                            .ldc = n};
  for (auto _ : state) cpu::gemm_serial(product);
  state.counters["flops"] =
      benchmark::Counter(2.0 * static_cast<double>(n * n * n), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(gemm_of_one_thread)->Arg(31)->Arg(64)->Arg(256)->Arg(1024);

}  // namespace

BENCHMARK_MAIN();
