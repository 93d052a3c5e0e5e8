// Compiled for the plain x86-64 (see CMakeLists.txt), so that it can run where the rest of the library cannot.
#include "core/instruction_set.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tapestry_config.h"

namespace tapestry {

namespace {

#if defined(__x86_64__)
// What TAPESTRY_ARCH may name, each with all that stands before it.
constexpr const char* kLevels[] = {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-bf16"};

int level_of(const char* name) {
  for (int level = 0; level < 5; ++level)
    if (std::strcmp(name, kLevels[level]) == 0) return level;
  return 0;  // portable
}

int machine_level() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return __builtin_cpu_supports("avx512bf16") ? 4 : 3;
  if (__builtin_cpu_supports("x86-64-v3")) return 2;
  if (__builtin_cpu_supports("x86-64-v2")) return 1;
  return 0;
}
#endif

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) std::_Exit(1);
}

// Before any other constructor: those may already use the instructions in question.
__attribute__((constructor(101))) void check_at_start() { require_instruction_set(); }

}  // namespace

void require_instruction_set() {
#if defined(__x86_64__)
  if (level_of(kArch) <= machine_level()) return;
  say("tapestry: this build needs a processor of level ");
  say(kArch);
  say(", but this one is ");
  say(machine_instruction_set());
  say("; build again here, or with -DTAPESTRY_ARCH=x86-64-v2\n");
  std::_Exit(1);
#endif
}

const char* machine_instruction_set() {
#if defined(__x86_64__)
  return kLevels[machine_level()];
#else
  return "not x86-64";
#endif
}

}  // namespace tapestry
