#include "progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace tapestry::command {

namespace {

constexpr double kRedraw = 0.1;  // seconds

int terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void print_line(const std::string& text) {
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
}

double plain_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }

std::string human_duration(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

Progress::Progress(std::int64_t first_step, std::int64_t last_step, std::int64_t log_interval)
    : first_step_(first_step), last_step_(last_step), log_interval_(log_interval) {
  const char* term = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");
  terminal_ = isatty(STDOUT_FILENO) && !(term && std::string(term) == "dumb");
  colour_ = terminal_ && !(no_colour && *no_colour);
}

void Progress::step(const StepInfo& info) {
  tokens_ += info.tokens;
  seconds_ += info.seconds;
  since_drawn_ += info.seconds;
  if (std::isfinite(info.loss)) smooth_loss_ = smooth_loss_ == 0 ? info.loss : 0.95 * smooth_loss_ + 0.05 * info.loss;
  if (!terminal_) {
    if (info.step % log_interval_ != 0 && info.step != last_step_) return;
    std::string text = fmt::format("step {:>6}  loss {:.4f}  lr {:.2e}  grad_norm {:.3g}  {:.0f} tokens/s", info.step,
                                   plain_nan(info.loss), info.lr, plain_nan(info.grad_norm), tokens_per_second());
    if (info.scale != 1) text += fmt::format("  scale {}", info.scale);
    if (info.skipped_steps > 0) text += fmt::format("  skipped {}", info.skipped_steps);
    return line(text);
  }
  if (drawn_ && since_drawn_ < kRedraw && info.step != last_step_) return;
  since_drawn_ = 0;
  std::fputs(fmt::format("\r{}\x1b[K", bar(info.step, smooth_loss_)).c_str(), stdout);
  std::fflush(stdout);
  drawn_ = true;
}

std::string Progress::bar(std::int64_t step, double loss) const {
  const double done = static_cast<double>(step - first_step_);
  const double left = done > 0 ? seconds_ / done * static_cast<double>(last_step_ - step) : 0;
  const std::string text = fmt::format(" {}/{}  loss {:.4f}  {:.0f} tokens/s  ETA {}", step, last_step_, loss,
                                       tokens_per_second(), human_duration(left));
  const int room = std::clamp(terminal_width() - static_cast<int>(text.size()) - 4, 0, 40);
  const double part = last_step_ > 0 ? static_cast<double>(step) / static_cast<double>(last_step_) : 1;
  const int full = static_cast<int>(part * room);
  if (room < 5) return text.substr(1, static_cast<std::size_t>(std::max(terminal_width() - 1, 1)));
  const std::string filled(static_cast<std::size_t>(full), '='), open(static_cast<std::size_t>(room - full), ' ');
  return fmt::format("[{}{}{}{}]{}", colour_ ? "\x1b[32m" : "", filled, colour_ ? "\x1b[0m" : "", open, text);
}

void Progress::line(const std::string& text) {
  clear();
  print_line(text);
}

void Progress::highlight(const std::string& text) { line(colour_ ? fmt::format("\x1b[1;36m{}\x1b[0m", text) : text); }

void Progress::finish() { clear(); }

void Progress::clear() {
  if (drawn_) std::fputs("\r\x1b[K", stdout);
  drawn_ = false;
}

double Progress::tokens_per_second() const { return seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0; }

}  // namespace tapestry::command
