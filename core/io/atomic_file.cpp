// The order that makes a replacement safe: write beside the target, fsync, rename, fsync the folder.
#include "core/io/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

namespace tapestry {
namespace {

constexpr std::size_t kChunk = std::size_t{16} << 20;
constexpr int kMaxTemporaryNames = 10000;

std::string reason(int error) { return std::generic_category().message(error); }

// A system call again until no signal interrupts it.
template <class Call>
auto retry(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  // Some file systems report a failed write only here. Linux frees the descriptor even when it reports EINTR.
  bool close() { return ::close(std::exchange(descriptor_, -1)) == 0 || errno == EINTR; }

 private:
  int descriptor_;
};

// A write beyond the file size limit raises SIGXFSZ, which kills by default. While this lives, the signal waits in
// this thread, so that the write fails with EFBIG; a signal raised meanwhile is taken back at the end.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() {
    sigset_t pending;
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &set_, &outer_);
  }
  ~FileSizeSignalBlocked() {
    const timespec now{};
    if (!was_pending_) retry([&] { return sigtimedwait(&set_, nullptr, &now); });
    pthread_sigmask(SIG_SETMASK, &outer_, nullptr);
  }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

 private:
  sigset_t set_, outer_;
  bool was_pending_;
};

// The file that a write to `path` would change.
std::filesystem::path target_of(const std::string& path) {
  namespace fs = std::filesystem;
  TAP_CHECK(!path.empty(), "replace_file: the path is empty");
  std::error_code error;
  const fs::file_status link = fs::symlink_status(path, error);
  const fs::path target = fs::is_symlink(link) ? fs::weakly_canonical(path, error) : fs::path(path);
  const fs::file_status status = fs::status(target, error);
  TAP_CHECK(!fs::is_directory(status), "replace_file: cannot write ", path, ": it is a folder; name a file");
  TAP_CHECK(!fs::exists(status) || fs::is_regular_file(status), "replace_file: cannot write ", path,
            ": it is not a regular file");
  TAP_CHECK(target.has_filename(), "replace_file: cannot write ", path, ": it names no file");
  return target;
}

// A file beside the target that is removed unless it became the target.
class TemporaryFile {
 public:
  TemporaryFile(int folder, const std::string& target_name) : folder_(folder) {
    const std::string stem = text_of(".", target_name.substr(0, 200), ".", getpid(), ".");
    for (int i = 0; i < kMaxTemporaryNames && descriptor_ < 0; ++i) {
      name_ = text_of(stem, i, ".tmp");
      descriptor_ = retry(
          [&] { return ::openat(folder_, name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode_t{0666}); });
      if (descriptor_ < 0 && errno != EEXIST) break;
    }
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0 && !renamed_) ::unlinkat(folder_, name_.c_str(), 0);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int descriptor() const { return descriptor_; }
  bool rename_to(const std::string& name) {
    renamed_ = ::renameat(folder_, name_.c_str(), folder_, name.c_str()) == 0;
    return renamed_;
  }

 private:
  int folder_, descriptor_ = -1;
  std::string name_;
  bool renamed_ = false;
};

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = retry([&] { return ::write(descriptor, bytes.data(), std::min(bytes.size(), kChunk)); });
    if (written == 0) errno = EIO;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

void replace_file(const std::string& path, std::span<const std::byte> bytes) {
  const std::filesystem::path target = target_of(path);
  const std::string name = target.filename().string();
  const std::string folder_name = target.has_parent_path() ? target.parent_path().string() : ".";
  const auto check = [&](bool ok, std::string_view what) {
    if (!ok) fail("replace_file: cannot write ", path, ": ", what, ": ", reason(errno), "; the old file is unchanged");
  };

  File folder(retry([&] { return ::open(folder_name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  check(static_cast<bool>(folder), text_of("opening the folder ", folder_name));
  TemporaryFile temporary(folder.descriptor(), name);
  check(temporary.descriptor() >= 0, text_of("creating a file in ", folder_name));
  File file(temporary.descriptor());
  {
    const FileSizeSignalBlocked blocked;
    check(write_all(file.descriptor(), bytes), "writing");
  }
  check(retry([&] { return ::fsync(file.descriptor()); }) == 0, "fsync");
  check(file.close(), "closing");
  check(temporary.rename_to(name), "renaming");
  // Some file systems cannot fsync a folder and say so with EINVAL; there is nothing more to do on them.
  if (retry([&] { return ::fsync(folder.descriptor()); }) != 0 && errno != EINVAL)
    fail("replace_file: ", path, " was replaced, but fsync of its folder failed: ", reason(errno),
         "; a power cut may bring the old file back");
}

void replace_file(const std::string& path, std::string_view text) {
  replace_file(path, std::as_bytes(std::span(text)));
}

std::string read_file(const std::string& path) {
  const auto check = [&](bool ok) {
    if (!ok) fail("cannot read ", path, ": ", reason(errno));
  };
  const File file(retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  check(static_cast<bool>(file));
  struct stat status;
  check(::fstat(file.descriptor(), &status) == 0);
  TAP_CHECK(!S_ISDIR(status.st_mode), "cannot read ", path, ": it is a folder; name a file");

  // The size is a hint only: pipes have none, and a file may grow. One byte more finds the end without another round.
  std::string content;
  std::size_t used = 0;
  try {
    content.resize(static_cast<std::size_t>(std::max<off_t>(status.st_size, 4095)) + 1);
    for (;;) {
      const ssize_t got = retry(
          [&] { return ::read(file.descriptor(), content.data() + used, std::min(content.size() - used, kChunk)); });
      check(got >= 0);
      if (got == 0) break;
      used += static_cast<std::size_t>(got);
      if (used == content.size()) content.resize(2 * used);
    }
  } catch (const std::bad_alloc&) {
    fail("cannot read ", path, ": its ", status.st_size, " bytes do not fit into memory");
  }
  content.resize(used);
  return content;
}

}  // namespace tapestry
