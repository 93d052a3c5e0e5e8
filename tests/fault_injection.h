// What tests of files share: a folder, a child process, and system calls that fail on command. The four calls below
// take the place of the C library's in the whole program; include this in one file of a test.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "tests/error_message.h"

namespace faults {

// From `arm` on, call number `fail_at` (from 0) to any function below fails with `error`.
inline thread_local int calls = 0, fail_at = -1, error = 0;
inline thread_local bool active = false;
inline thread_local std::size_t most_bytes = 0;    // that one write takes; 0: all
inline thread_local bool interrupt_often = false;  // every second write fails with EINTR

inline void arm(int at, int with) { calls = 0, fail_at = at, error = with, active = true; }
inline void disarm() { active = false, most_bytes = 0, interrupt_often = false; }
inline bool fails() {
  if (!active || calls++ != fail_at) return false;
  errno = error;
  return true;
}

}  // namespace faults

extern "C" {
ssize_t write(int file, const void* data, size_t bytes) {
  static thread_local bool odd = false;
  if (faults::fails()) return -1;
  if (faults::interrupt_often && (odd = !odd)) return errno = EINTR, -1;
  if (faults::most_bytes) bytes = std::min(bytes, faults::most_bytes);
  return syscall(SYS_write, file, data, bytes);
}
int fsync(int file) { return faults::fails() ? -1 : static_cast<int>(syscall(SYS_fsync, file)); }
int close(int file) {
  const bool fails = faults::fails();  // the descriptor is closed all the same, as on Linux
  const int result = static_cast<int>(syscall(SYS_close, file));
  if (fails) errno = faults::error;
  return fails ? -1 : result;
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return faults::fails() ? -1 : static_cast<int>(syscall(SYS_renameat, from_folder, from, to_folder, to));
}
}

// The exit code of `f` in a child process; 128 + signal if it was killed.
template <class F>
int in_child(F&& f) {
  const pid_t child = fork();
  if (child == 0) _exit(f());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A folder of its own that goes away with its content.
struct TemporaryFolder {
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tapestry_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  int files() const { return static_cast<int>(std::distance(std::filesystem::directory_iterator(path), {})); }
  std::filesystem::path path;
};
