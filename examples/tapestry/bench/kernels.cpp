// tapestry bench gemm, attention, ops, optimizer: single kernels beside the machine's limits.
#include <fmt/format.h>

#include <functional>
#include <vector>

#include "autograd/ops.h"
#include "benchmarks.h"
#include "core/kernels/optimizer.h"
#include "core/kernels/products.h"
#include "core/parallel.h"
#include "measure.h"

namespace tapestry::command {

namespace {

// What all of these topics take.
struct Choice {
  Peak peak;
  std::string filter;
  bool takes(std::string_view name) const { return name.find(filter) != std::string_view::npos; }
};

// Parses the options and measures the machine; false when only help was asked for.
bool begin(const char* topic, const char* summary, const Arguments& args, Choice& choice,
           std::string* dtype = nullptr) {
  int threads = 0;
  Options parser(fmt::format("tapestry bench {}", topic), summary);
  parser.add("threads", threads, "0: as many as there are processors");
  parser.add("filter", choice.filter, "only rows whose name contains this text");
  if (dtype) parser.add("dtype", *dtype, "of operands and results: f32, f64, bf16 or f16");
  if (!parser.parse(args)) return false;
  if (dtype && *dtype != "f32" && *dtype != "f64" && *dtype != "bf16" && *dtype != "f16")
    throw UsageError(fmt::format("--dtype must be f32, f64, bf16 or f16, not '{}'", *dtype));
  set_num_threads(threads);
  choice.peak = measure_peak();
  fmt::print("{}\n", text(choice.peak));
  return true;
}

Tensor random(const Shape& shape, std::uint64_t stream = 0) {
  Tensor t = empty(shape);
  fill_normal(t, 0, 1, RandomKey{1, stream});
  return t;
}

// ---- matrix products

struct Product {
  const char* name;
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
};
constexpr Product kProducts[] = {
    {"tiny qkv", 768, 384, 128},
    {"tiny qkv dx", 768, 128, 384, false, true},
    {"tiny qkv dweight", 128, 384, 768, true},
    {"tiny head", 768, 65, 128, false, true},
    {"c384 up", 2048, 1536, 384},
    {"c384 up dx", 2048, 384, 1536, false, true},
    {"c384 up dweight", 384, 1536, 2048, true},
    {"c384 head", 2048, 65, 384, false, true},
    {"g124 up", 256, 3072, 768},
    {"g124 up dx", 256, 768, 3072, false, true},
    {"g124 up dweight", 768, 3072, 256, true},
    {"g124 out", 256, 768, 768},
    {"g124 head", 256, 50304, 768, false, true},
    {"g124 head dx", 256, 768, 50304},
    {"g124 head dweight", 50304, 768, 256, true},
    {"square", 1024, 1024, 1024},
    {"odd", 1021, 1013, 1019},
    {"one row", 1, 3072, 768},
    {"one row transposed", 1, 50304, 768, false, true},
    {"four rows transposed", 4, 50304, 768, false, true},
};

}  // namespace

int bench_gemm(const Arguments& args) {
  Choice choice;
  std::string name = "f32";
  if (!begin("gemm", "Time the matrix products of the models, and odd ones.", args, choice, &name)) return 0;
  const Peak& peak = choice.peak;
  const DType dtype = dtype_from_name(name);
  fmt::print("{:<22}{:>20}{:>5}{:>11}{:>10}{:>9}{:>9}\n", "product", "m x n x k", "", "ms", "GFLOP/s", "of peak",
             "GB/s");
  for (const Product& p : kProducts) {
    if (!choice.takes(p.name)) continue;
    const Tensor a = random({p.m, p.k}).to(dtype), b = random({p.k, p.n}, 1).to(dtype);
    Tensor c = empty({p.m, p.n}, dtype);
    Timing t;
    cpu::visit_products("bench gemm", dtype, [&]<class Kind>(Kind) {
      const typename Kind::Product product{.m = p.m,
                                           .n = p.n,
                                           .k = p.k,
                                           .transpose_a = p.transpose_a,
                                           .transpose_b = p.transpose_b,
                                           .a = Kind::in(a),
                                           .b = Kind::in(b),
                                           .c = Kind::out(c),
                                           .lda = p.transpose_a ? p.m : p.k,
                                           .ldb = p.transpose_b ? p.k : p.n,
                                           .ldc = p.n};
      t = time_calls([&] { cpu::gemm(product); });
    });
    const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    const double bytes = static_cast<double>(a.bytes() + b.bytes() + c.bytes());
    fmt::print("{:<22}{:>20}{:>5}{:>11.3f}{:>10.1f}{:>8.0f}%{:>9.1f}\n", p.name,
               fmt::format("{} x {} x {}", p.m, p.n, p.k),
               fmt::format("{}{}", p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N'), t.median * 1e3,
               flops / t.median * 1e-9, 100 * flops / t.median * 1e-9 / peak.gflops, bytes / t.median * 1e-9);
  }
  return 0;
}

int bench_attention(const Arguments& args) {
  Choice choice;
  std::string name = "f32";
  if (!begin("attention", "Time attention on packed q, k, v, forward and backward.", args, choice, &name)) return 0;
  const Peak& peak = choice.peak;
  const DType dtype = dtype_from_name(name);
  struct Row {
    const char* name;
    std::int64_t batch, time, heads, size;
    bool causal;
  };
  constexpr Row kRows[] = {{"tiny", 12, 64, 4, 32, true},
                           {"c384", 8, 256, 6, 64, true},
                           {"g124", 4, 64, 12, 64, true},
                           {"long", 1, 2048, 8, 64, true},
                           {"long, not causal", 1, 2048, 8, 64, false},
                           {"odd", 3, 251, 5, 47, true}};
  fmt::print("{:<20}{:>24}{:>13}{:>10}{:>9}{:>14}{:>10}{:>9}\n", "attention", "batch, time, heads, size", "forward ms",
             "GFLOP/s", "of peak", "backward ms", "GFLOP/s", "of peak");
  for (const Row& r : kRows) {
    if (!choice.takes(r.name)) continue;
    const Tensor qkv = random({r.batch, r.time, 3 * r.heads * r.size}).to(dtype);
    const Tensor dout = random({r.batch, r.time, r.heads * r.size}, 1).to(dtype);
    const AttentionOptions options{.causal = r.causal};
    const Timing forward = time_calls([&] { attention_packed(qkv, r.heads, options); });
    const Timing both = time_calls([&] {
      Tape tape;
      tape.backward(attention_packed(tape.watch(qkv), r.heads, options), dout);
    });
    // Two products forward and five backward of T x T x D each, half of it hidden when causal.
    const double product = 2.0 * static_cast<double>(r.batch * r.heads * r.time * r.time * r.size) / (r.causal ? 2 : 1);
    const double backward = both.median - forward.median;
    auto rate = [&](double products, double seconds) { return products * product / seconds * 1e-9; };
    fmt::print("{:<20}{:>24}{:>13.3f}{:>10.1f}{:>8.0f}%{:>14.3f}{:>10.1f}{:>8.0f}%\n", r.name,
               fmt::format("{}, {}, {}, {}", r.batch, r.time, r.heads, r.size), forward.median * 1e3,
               rate(2, forward.median), 100 * rate(2, forward.median) / peak.gflops, backward * 1e3, rate(5, backward),
               100 * rate(5, backward) / peak.gflops);
  }
  return 0;
}

namespace {

// An op of one large input: bytes that forward, and backward after it, at least have to move.
struct OpRow {
  std::string name;
  Shape shape;
  std::function<Var(const Var&)> op;
  double forward_passes, backward_passes;  // over an array of x's size, reads and writes
};

std::vector<OpRow> op_rows() {
  const Shape wide{4096, 1024};
  const Tensor other = random(wide, 2), weight = random({1024}, 3), bias = random({1024}, 4);
  Tensor targets = zeros({4096}, DType::i32);
  auto unary = [&](const char* name, Var (*f)(const Var&)) {
    return OpRow{name, wide, [f](const Var& x) { return f(x); }, 2, 3};
  };
  return {
      {"add", wide, [=](const Var& x) { return x + Var(other); }, 3, 0},
      {"mul", wide, [=](const Var& x) { return x * Var(other); }, 3, 3},
      {"add a row", wide, [=](const Var& x) { return x + Var(bias); }, 2, 0},
      unary("exp", exp),
      unary("tanh", tanh),
      unary("gelu", gelu),
      unary("gelu_tanh", gelu_tanh),
      unary("sigmoid", sigmoid),
      {"dropout 0.1", wide,
       [](const Var& x) {
         return dropout(x, 0.1, RandomKey{1, 1});
       },
       2, 2},
      {"layernorm", wide, [=](const Var& x) { return layernorm(x, weight, bias); }, 2, 3},
      {"rmsnorm", wide, [=](const Var& x) { return rmsnorm(x, weight); }, 2, 3},
      {"batchnorm",
       {4096, 1024},
       [=](const Var& x) { return batchnorm(x, weight, bias, zeros({1024}), full({1024}, 1), true); },
       2,
       3},
      {"softmax", wide, [](const Var& x) { return softmax(x); }, 2, 3},
      {"cross_entropy", wide, [=](const Var& x) { return cross_entropy(x, targets).loss; }, 1, 2},
      {"sum", wide, [](const Var& x) { return sum(x); }, 1, 1},
      {"sum axis 0", wide, [](const Var& x) { return sum(x, {0}); }, 1, 1},
      {"sum axis 1", wide, [](const Var& x) { return sum(x, {1}); }, 1, 1},
      {"max axis 0", wide, [](const Var& x) { return max(x, {0}); }, 1, 1},
      {"var axis 0", wide, [](const Var& x) { return var(x, {0}); }, 1, 2},
      {"logsumexp axis 0", wide, [](const Var& x) { return logsumexp(x, {0}); }, 1, 2},
      {"transpose", {4096, 4096}, [](const Var& x) { return transpose(x); }, 2, 2},
      {"concat", wide,
       [=](const Var& x) {
         return concat({x, Var(other)}, 0);
       },
       4, 2},
  };
}

}  // namespace

int bench_ops(const Arguments& args) {
  Choice choice;
  if (!begin("ops", "Time ops on arrays larger than the caches.", args, choice)) return 0;
  const Peak& peak = choice.peak;
  fmt::print("{:<20}{:>14}{:>12}{:>9}{:>9}{:>14}{:>9}{:>9}\n", "op", "shape", "forward ms", "GB/s", "of peak",
             "backward ms", "GB/s", "of peak");
  for (const OpRow& r : op_rows()) {
    if (!choice.takes(r.name)) continue;
    const Tensor x = random(r.shape, 1);
    const Tensor y = r.op(x).value();
    const Tensor dy = random(y.shape(), 5);
    const double bytes = 4.0 * static_cast<double>(x.numel());
    const Timing forward = time_calls([&] { r.op(x); });
    const Timing both = time_calls([&] {
      Tape tape;
      tape.backward(r.op(tape.watch(x)), dy);
    });
    auto columns = [&](double passes, double seconds, int width) {
      const double rate = bytes * passes / seconds * 1e-9;
      if (passes == 0) return fmt::format("{:>{}}{:>9}{:>9}", fmt::format("{:.3f}", seconds * 1e3), width, "-", "-");
      return fmt::format("{:>{}.3f}{:>9.1f}{:>8.0f}%", seconds * 1e3, width, rate,
                         100 * rate / (passes > 1 ? peak.write_gbs : peak.read_gbs));
    };
    fmt::print("{:<20}{:>14}{}{}\n", r.name, to_text(r.shape), columns(r.forward_passes, forward.median, 12),
               columns(r.backward_passes, std::max(0.0, both.median - forward.median), 14));
  }
  return 0;
}

int bench_optimizer(const Arguments& args) {
  Choice choice;
  if (!begin("optimizer", "Time the updates of 100 million parameters.", args, choice)) return 0;
  const Peak& peak = choice.peak;
  constexpr std::int64_t kCount = 100'000'000;
  const MemoryScope scope(MemoryCategory::optimizer);
  Tensor value = random({kCount}), m = zeros({kCount}), v = zeros({kCount});
  const Tensor grad = random({kCount}, 1);
  fmt::print("{:<20}{:>12}{:>9}{:>9}\n", "100 M parameters", "ms", "GB/s", "of peak");
  auto row = [&](const char* name, double bytes, double limit, const std::function<void()>& f) {
    if (!choice.takes(name)) return;
    const Timing t = time_calls(f, 2);
    const double rate = bytes * kCount / t.median * 1e-9;
    fmt::print("{:<20}{:>12.2f}{:>9.1f}{:>8.0f}%\n", name, t.median * 1e3, rate, 100 * rate / limit);
  };
  double sum = 0;
  row("norm", 4, peak.read_gbs, [&] { cpu::square_sum(grad, {0, kCount}, sum); });
  std::int64_t updates = 0;
  row("AdamW", 28, peak.write_gbs, [&] {
    cpu::adam_update(value, grad, m, v, {0, kCount}, AdamStep{1e-3, 0.9, 0.999, 1e-8, 0.01, 1, true, ++updates});
  });
  row("SGD with momentum", 20, peak.write_gbs, [&] {
    cpu::sgd_update(value, grad, m, {0, kCount}, SgdStep{1e-3, 0.9, 0, 1, false, ++updates});
  });
  row("Lion", 20, peak.write_gbs,
      [&] { cpu::lion_update(value, grad, m, {0, kCount}, LionStep{1e-4, 0.9, 0.99, 0.1, 1}); });
  return 0;
}

}  // namespace tapestry::command
