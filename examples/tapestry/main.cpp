// The `tapestry` command: picks the subcommand and turns errors into one line and an exit code (2 usage, 1 failure).
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "commands.h"
#include "core/error.h"
#include "tapestry_config.h"

namespace {

using tapestry::command::Arguments;

struct Command {
  const char* name;
  int (*run)(const Arguments&);
  const char* summary;
};
constexpr Command kCommands[] = {
    {"train", tapestry::command::train, "train a small GPT on a text file"},
    {"sample", tapestry::command::sample, "write text with a trained checkpoint"},
    {"gradcheck", tapestry::command::gradcheck, "check the gradient of every op and layer numerically"},
    {"bench", tapestry::command::bench, "time training steps and kernels beside the limits of this machine"},
    {"info", tapestry::command::info, "show version, instruction set, threads and libraries"},
};

void print_help() {
  fmt::print("tapestry {}: train, sample and check small transformers on this machine\n\n", tapestry::kVersion);
  fmt::print("usage: tapestry COMMAND [OPTIONS]      tapestry COMMAND --help\n\n");
  for (const Command& c : kCommands) fmt::print("  {:<10} {}\n", c.name, c.summary);
  fmt::print("\nfirst steps:\n  tapestry train --data book.txt\n  tapestry sample --checkpoint out/checkpoint.h5\n");
}

int run(const Arguments& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    print_help();
    return args.empty() ? 2 : 0;
  }
  if (args[0] == "--version") {
    fmt::print("tapestry {}\n", tapestry::kVersion);
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& c : kCommands) {
    if (args[0] == c.name) return c.run(Arguments(args.begin() + 1, args.end()));
    names.emplace_back(c.name);
  }
  throw tapestry::command::UsageError(fmt::format("command '{}' is unknown{}; see tapestry --help", args[0],
                                                  tapestry::command::suggestion(args[0], names)));
}

// An error is one line, whatever it lists.
int complain(std::string_view text, int exit_code) {
  std::string line;
  for (char c : text) {
    if (c == '\n') c = ' ';
    if (c != ' ' || line.empty() || line.back() != ' ') line += c;
  }
  fmt::print(stderr, "tapestry: {}\n", line);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its size limit is an error like a full disk, not the end of the process
  try {
    return run(Arguments(argv + 1, argv + argc));
  } catch (const tapestry::command::UsageError& e) {
    return complain(e.what(), 2);
  } catch (const std::bad_alloc&) {
    return complain("not enough memory; use a smaller model or batch", 1);
  } catch (const std::exception& e) {
    return complain(e.what(), 1);
  }
}
