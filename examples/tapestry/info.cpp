// tapestry info: what this build is and what it runs on.
#include <fmt/format.h>

#include "autograd/autocast.h"
#include "commands.h"
#include "core/instruction_set.h"
#include "core/io/hdf5_file.h"
#include "core/parallel.h"
#include "tapestry_config.h"

namespace tapestry::command {

namespace {

// The table of autograd/autocast.h: each policy, what it means, and its ops in lines that fit a terminal.
void print_cast_policies() {
  constexpr std::size_t kWidth = 100;
  for (const CastPolicyRow& row : kCastPolicies) {
    fmt::print("{:<8} {}\n", row.name, row.meaning);
    std::string line;
    const auto flush = [&line] {
      if (!line.empty()) fmt::print("        {}\n", line);
      line.clear();
    };
    for_each_op(row, [&](std::string_view op) {
      if (line.size() + 1 + op.size() > kWidth - 8) flush();
      line += fmt::format(" {}", op);
    });
    flush();
  }
}

}  // namespace

int info(const Arguments& args) {
  bool autocast = false;
  Options parser("tapestry info", "Show version, instruction set, threads and libraries.");
  parser.add_flag("autocast", autocast, "show which types every function gives under an Autocast");
  if (!parser.parse(args)) return 0;
  if (autocast) {
    print_cast_policies();
    return 0;
  }
  fmt::print("version          {}\n", kVersion);
  fmt::print("compiler         g++ {} ({} build)\n", __VERSION__, kBuildType);
  fmt::print("instruction set  built for {}, this machine has {}\n", kArch, machine_instruction_set());
  fmt::print("threads          {}\n", num_threads());
  fmt::print("HDF5             {}\n", hdf5_version());
  fmt::print("GPU              {}\n", kHasGpu ? "on" : "off");
  return 0;
}

}  // namespace tapestry::command
