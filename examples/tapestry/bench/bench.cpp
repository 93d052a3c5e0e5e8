// tapestry bench: how fast this build is on this machine, beside what the machine can do.
#include <fmt/format.h>

#include "benchmarks.h"
#include "examples/tapestry/commands.h"

namespace tapestry::command {

namespace {

struct Topic {
  const char* name;
  int (*run)(const Arguments&);
  const char* summary;
};
constexpr Topic kTopics[] = {
    {"step", bench_step, "a whole training step of a GPT; one line that can be compared with other frameworks"},
    {"scaling", bench_scaling, "how a step's time grows with layers, width, length, batch and vocabulary"},
    {"sample", bench_sample, "tokens a second with the key-value cache"},
    {"tape", bench_tape, "what recording an op costs"},
    {"gemm", bench_gemm, "matrix products of the models, and odd ones"},
    {"attention", bench_attention, "attention, forward and backward"},
    {"ops", bench_ops, "pointwise ops, norms, softmax, losses, reductions"},
    {"optimizer", bench_optimizer, "AdamW, SGD and Lion on flat buffers"},
};

void print_help() {
  fmt::print("usage: tapestry bench TOPIC [OPTIONS]      tapestry bench TOPIC --help\n\n");
  for (const Topic& t : kTopics) fmt::print("  {:<10} {}\n", t.name, t.summary);
  fmt::print("\nRun nothing else meanwhile; compare only what was measured in the same minutes.\n");
}

}  // namespace

int bench(const Arguments& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    print_help();
    return args.empty() ? 2 : 0;
  }
  std::vector<std::string> names;
  for (const Topic& t : kTopics) {
    if (args[0] == t.name) return t.run(Arguments(args.begin() + 1, args.end()));
    names.emplace_back(t.name);
  }
  throw UsageError(
      fmt::format("bench: topic '{}' is unknown{}; see tapestry bench --help", args[0], suggestion(args[0], names)));
}

}  // namespace tapestry::command
