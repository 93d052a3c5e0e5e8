// Makes chosen system calls of the test program fail. The functions below take the place of the C library's for the
// whole program; include this in one file of a test.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

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
inline ssize_t write_or_fail(int file, const void* data, size_t bytes) {
  static thread_local bool odd = false;
  if (faults::fails()) return -1;
  if (faults::interrupt_often && (odd = !odd)) return errno = EINTR, -1;
  if (faults::most_bytes) bytes = std::min(bytes, faults::most_bytes);
  return syscall(SYS_write, file, data, bytes);
}
ssize_t write(int file, const void* data, size_t bytes) { return write_or_fail(file, data, bytes); }
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
