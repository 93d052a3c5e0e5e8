// The topics of `tapestry bench`. Each parses its own options and prints to stdout.
#pragma once

#include "examples/tapestry/arguments.h"

namespace tapestry::command {

int bench_step(const Arguments& args);
int bench_scaling(const Arguments& args);
int bench_tape(const Arguments& args);
int bench_sample(const Arguments& args);
int bench_gemm(const Arguments& args);
int bench_ops(const Arguments& args);
int bench_attention(const Arguments& args);
int bench_optimizer(const Arguments& args);

}  // namespace tapestry::command
