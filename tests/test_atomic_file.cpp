// Replacing a file: whole content, every kind of failure, and kills at random moments.
#include "core/io/atomic_file.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <system_error>
#include <thread>

#include "core/random.h"
#include "fault_injection.h"

using namespace tapestry;

TEST_CASE("a file is created, replaced, made empty, and read back") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  for (const std::string& content : {std::string("first"), std::string("a longer second"), std::string(),
                                     std::string("\0\n\xff", 3), std::string(40'000'001, 'x')}) {
    replace_file(path, content);
    CHECK(read_file(path) == content);
    CHECK(folder.files() == 1);
  }
}

TEST_CASE("a file name of 255 bytes, and one without a folder") {
  const TemporaryFolder folder;
  replace_file(folder / std::string(255, 'n'), "long");
  CHECK(read_file(folder / std::string(255, 'n')) == "long");
  CHECK(in_child([&] {
          if (chdir(folder.path.c_str()) != 0) return 1;
          replace_file("here", "content");
          return read_file("here") == "content" ? 0 : 2;
        }) == 0);
}

TEST_CASE("the mode of a new file follows the umask") {
  const TemporaryFolder folder;
  const mode_t outer = umask(027);
  replace_file(folder / "f", "x");
  umask(outer);
  struct stat status;
  REQUIRE(stat((folder / "f").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
}

TEST_CASE("symbolic links are followed, stray temporary files ignored") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path / "deep");
  replace_file(folder / "deep/real", "old");
  std::filesystem::create_symlink("deep/real", folder / "link");
  replace_file(folder / "link", "new");
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(read_file(folder / "deep/real") == "new");

  std::ofstream(folder / text_of(".f.", getpid(), ".0.tmp")) << "left by a killed process";
  replace_file(folder / "f", "x");
  CHECK(read_file(folder / "f") == "x");
  CHECK(read_file(folder / text_of(".f.", getpid(), ".0.tmp")) == "left by a killed process");
}

TEST_CASE("paths that cannot be written give an error with path and reason") {
  const TemporaryFolder folder;
  replace_file(folder / "file", "x");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const auto error = [](const std::string& path) { return message_of([&] { replace_file(path, "y"); }); };
  for (const auto& [path, reason] : {std::pair{folder / "missing/file", "No such file or directory"},
                                     {folder / "file/below", "Not a directory"},
                                     {folder.path.string(), "it is a folder"},
                                     {folder / "missing/", "it names no file"},
                                     {"/proc/self/new", ""},
                                     {folder / "pipe", "not a regular file"},
                                     {folder / std::string(256, 'n'), "File name too long"}}) {
    CAPTURE(error(path));
    CHECK(has(error(path), path));
    CHECK(has(error(path), reason));
  }
  CHECK(has(error(""), "the path is empty"));
  CHECK(folder.files() == 2);
  CHECK(read_file(folder / "file") == "x");
}

TEST_CASE("read_file says what is wrong") {
  const TemporaryFolder folder;
  const auto error = [](const std::string& path) { return message_of([&] { read_file(path); }); };
  CHECK(error(folder / "missing") == "cannot read " + folder / "missing" + ": No such file or directory");
  CHECK(has(error(folder.path.string()), "it is a folder"));
  CHECK(has(read_file("/proc/self/status"), "Pid:"));  // its size is given as 0
}

TEST_CASE("F03 every failing system call leaves the old file and no temporary one") {
  const TemporaryFolder folder;
  const std::string path = folder / "state", fresh(40'000'000, 'n');  // three chunks
  const std::string old = "old content";
  for (const int error : {EIO, ENOSPC}) {
    int failures = 0;
    for (bool failed = true; failed; ++failures) {
      replace_file(path, old);
      faults::arm(failures, error);
      const std::string message = message_of([&] { replace_file(path, fresh); });
      faults::disarm();
      CAPTURE(message);
      failed = has(message, std::generic_category().message(error));
      CHECK(folder.files() == 1);
      const bool replaced = has(message, "was replaced");  // fsync of the folder comes after the rename
      CHECK(read_file(path) == (failed && !replaced ? old : fresh));
      if (failed) CHECK(has(message, path));
    }
    CHECK(failures >= 3 + 4);  // three writes, fsync, close, rename, fsync of the folder
  }
}

TEST_CASE("F03 short and interrupted writes are continued") {
  const TemporaryFolder folder;
  std::string content;
  for (int i = 0; i < 5000; ++i) content += static_cast<char>(i * 7 + i / 256);
  faults::most_bytes = 7;
  faults::interrupt_often = true;
  replace_file(folder / "f", content);
  faults::disarm();
  CHECK(read_file(folder / "f") == content);
}

TEST_CASE("F03 a full disk (file size limit) leaves the old file, and no signal kills or stays pending") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  replace_file(path, "old");
  const int code = in_child([&] {
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = message_of([&] { replace_file(path, std::string(3 << 20, 'n')); });
    if (!has(message, path) || !has(message, "File too large")) return 1;
    sigset_t pending, blocked;
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    if (sigismember(&pending, SIGXFSZ) || sigismember(&blocked, SIGXFSZ)) return 2;
    struct sigaction action;
    sigaction(SIGXFSZ, nullptr, &action);
    if (action.sa_handler != SIG_DFL) return 3;
    replace_file(path + "2", "a small one still goes");
    return 0;
  });
  CHECK(code == 0);
  CHECK(read_file(path) == "old");
  CHECK(folder.files() == 2);
}

TEST_CASE("threads that replace one file leave one whole content") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  std::vector<std::thread> threads;
  for (char c : {'a', 'b', 'c'})
    threads.emplace_back([&path, c] {
      for (int i = 0; i < 20; ++i) replace_file(path, std::string(10000, c));
    });
  for (auto& t : threads) t.join();
  const std::string content = read_file(path);
  CHECK(content == std::string(10000, content[0]));
  CHECK(folder.files() == 1);
}

TEST_CASE("slow: F03 a writer killed at random moments") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  // Content n is n repeated, of a length that depends on n: a torn file cannot look whole.
  const auto content = [](int n) {
    std::string text;
    for (int i = 0; i < 3000 + 500 * (n % 7); ++i) text.append(to_text(n)).append("\n");
    return text;
  };
  replace_file(path, content(0));
  int last = 0, kills = 0;
  for (const RandomKey random{5, 0}; kills < 300; ++kills) {
    const pid_t child = fork();
    if (child == 0) {
      for (int n = last + 1;; ++n) replace_file(path, content(n));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(kills, 20000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string found = read_file(path);
    const int n = std::stoi(found);
    REQUIRE(found == content(n));
    REQUIRE(n >= last);
    last = n;
  }
  CHECK(last > 0);
}
