// Runs the tapestry command as a child process: what it prints, how it ends, under a file size limit or on a terminal.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tapestry {

using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Ended {
  int code = -1;   // exit code, or -1
  int signal = 0;  // that ended it, or 0
  std::string out, err;
};

struct ChildOptions {
  rlim_t file_size_limit = RLIM_INFINITY;
  bool terminal = false;   // stdout and stderr are one pseudo terminal, read as `out`
  Words environment = {};  // "NAME=value", on top of ours
};

inline std::string tapestry_binary() { return TAPESTRY_BINARY_DIR "/tapestry"; }

class Child {
 public:
  explicit Child(const Words& command, const ChildOptions& options = {}) {
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    if (options.terminal) {
      winsize size{.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
      pid_ = forkpty(&out_.descriptor, nullptr, nullptr, &size);
    } else {
      if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
      pid_ = fork();
    }
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) execute(command, options, out[1], err[1]);
    if (options.terminal) return;
    close(out[1]);
    close(err[1]);
    out_.descriptor = out[0];
    err_.descriptor = err[0];
  }
  ~Child() {
    if (pid_ > 0) {
      kill(SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (Stream* s : {&out_, &err_})
      if (s->descriptor >= 0) close(s->descriptor);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill(int signal) { ::kill(pid_, signal); }
  // Reads until the text has come; false if the child ended without it.
  bool wait_for_out(const std::string& text) { return read_until(out_, text); }
  bool wait_for_err(const std::string& text) { return read_until(err_, text); }

  Ended end() {
    while (read_some()) {}
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
            .out = out_.text,
            .err = err_.text};
  }

 private:
  struct Stream {
    int descriptor = -1;
    std::string text;
  };

  [[noreturn]] static void execute(const Words& command, const ChildOptions& options, int out, int err) {
    if (!options.terminal) {
      dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
      dup2(out, STDOUT_FILENO);
      dup2(err, STDERR_FILENO);
    }
    if (options.file_size_limit != RLIM_INFINITY) {
      const rlimit limit{options.file_size_limit, options.file_size_limit};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    for (const std::string& setting : options.environment) putenv(const_cast<char*>(setting.c_str()));
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }

  bool read_until(Stream& stream, const std::string& text) {
    while (stream.text.find(text) == std::string::npos)
      if (!read_some()) return false;
    return true;
  }

  // False once both streams have ended.
  bool read_some() {
    pollfd polled[2] = {{out_.descriptor, POLLIN, 0}, {err_.descriptor, POLLIN, 0}};
    if (out_.descriptor < 0 && err_.descriptor < 0) return false;
    while (poll(polled, 2, -1) < 0 && errno == EINTR) {}
    Stream* streams[2] = {&out_, &err_};
    for (int i = 0; i < 2; ++i) {
      if (polled[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = read(streams[i]->descriptor, buffer, sizeof buffer);
      if (got > 0) {
        streams[i]->text.append(buffer, static_cast<std::size_t>(got));
      } else if (got == 0 || errno != EINTR) {  // a terminal whose other side is closed gives EIO
        close(streams[i]->descriptor);
        streams[i]->descriptor = -1;
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  Stream out_, err_;
};

inline Ended run(const Words& arguments, const ChildOptions& options = {}) {
  return Child(Words{tapestry_binary()} + arguments, options).end();
}

inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_content(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline Words lines_of(const std::string& text) {
  std::istringstream stream(text);
  Words lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// A folder of its own with a text in it, removed at the end.
class Workplace {
 public:
  Workplace() {
    std::string name = (std::filesystem::temp_directory_path() / "tapestry_command_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    folder_ = name;
    write_content(text(), english(20000));
  }
  ~Workplace() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string text() const { return path("text.txt"); }

  // Trains a tiny model into folder `out`; later options win.
  Words train(const std::string& out, const Words& more = {}) const {
    return Words{"train", "--data", text(), "--out_dir", path(out)} +
           Words{"--n_layer", "1", "--n_head", "2", "--n_embd", "16", "--block_size", "8", "--batch_size", "2"} +
           Words{"--max_iters", "20", "--warmup_iters", "3", "--eval_interval", "10", "--eval_iters", "2"} +
           Words{"--sample_tokens", "0", "--log_interval", "1", "--threads", "1"} + more;
  }

  static std::string english(std::size_t bytes) {
    const Words words = {"the", "loom", "and", "a", "thread", "of", "wool", "was", "woven", "in", "every", "colour"};
    std::string text;
    std::uint32_t state = 1;
    while (text.size() < bytes) {
      state = state * 1664525u + 1013904223u;
      text += words[(state >> 16) % words.size()];
      text += (state >> 8) % 9 == 0 ? ".\n" : " ";
    }
    return text;
  }

 private:
  std::string folder_;
};

}  // namespace tapestry
