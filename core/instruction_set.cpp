// Compiled for the plain x86-64 (see CMakeLists.txt), so that it can run where the rest of the library cannot.
#include "core/instruction_set.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tapestry_config.h"

namespace tapestry {

namespace {

[[maybe_unused]] int level_of(const char* name) { return std::strncmp(name, "x86-64-v", 8) == 0 ? name[8] - '0' : 1; }

#if defined(__x86_64__)
int machine_level() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return 4;
  if (__builtin_cpu_supports("x86-64-v3")) return 3;
  if (__builtin_cpu_supports("x86-64-v2")) return 2;
  return 1;
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
  constexpr const char* kNames[] = {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
  return machine_level() == 4 && __builtin_cpu_supports("avx512bf16") ? "x86-64-v4 with AVX512-BF16"
                                                                      : kNames[machine_level() - 1];
#else
  return "not x86-64";
#endif
}

}  // namespace tapestry
