// The instruction set this build needs, and whether this machine has it.
#pragma once

namespace tapestry {

// Runs by itself before main: a program on a lesser machine ends with a message instead of an illegal instruction.
// Exit code 1.
void require_instruction_set();

// The best TAPESTRY_ARCH of the running machine, such as "x86-64-v4-bf16" or "x86-64-v4"; for `tapestry info`.
const char* machine_instruction_set();

}  // namespace tapestry
