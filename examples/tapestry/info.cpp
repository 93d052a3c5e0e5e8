// tapestry info: what this build is and what it runs on.
#include <fmt/format.h>

#include "commands.h"
#include "core/instruction_set.h"
#include "core/io/hdf5_file.h"
#include "core/parallel.h"
#include "tapestry_config.h"

namespace tapestry::command {

int info(const Arguments& args) {
  Options parser("tapestry info", "Show version, instruction set, threads and libraries.");
  if (!parser.parse(args)) return 0;
  fmt::print("version          {}\n", kVersion);
  fmt::print("compiler         g++ {} ({} build)\n", __VERSION__, kBuildType);
  fmt::print("instruction set  built for {}, this machine has {}\n", kArch, machine_instruction_set());
  fmt::print("threads          {}\n", num_threads());
  fmt::print("HDF5             {}\n", hdf5_version());
  fmt::print("GPU              {}\n", kHasGpu ? "on" : "off");
  return 0;
}

}  // namespace tapestry::command
