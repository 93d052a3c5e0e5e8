// The subcommands. Each parses its own arguments and returns the exit code.
#pragma once

#include "arguments.h"

namespace tapestry::command {

int train(const Arguments& args);
int sample(const Arguments& args);
int info(const Arguments& args);
int gradcheck(const Arguments& args);
int bench(const Arguments& args);

}  // namespace tapestry::command
