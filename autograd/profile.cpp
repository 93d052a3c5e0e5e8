#include "autograd/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tapestry {

namespace {
thread_local Profile* innermost = nullptr;
}

Profile::Profile() : last_(Clock::now()), outer_(std::exchange(innermost, this)) {}
Profile::~Profile() { innermost = outer_; }
Profile* Profile::current() { return innermost; }

void Profile::count(std::string_view op, bool backward) {
  const Clock::time_point now = Clock::now();
  auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.op == op; });
  if (row == rows_.end()) row = rows_.insert(row, Row{std::string(op)});
  const double seconds = std::chrono::duration<double>(now - last_).count();
  (backward ? row->backward : row->forward) += seconds;
  row->calls += !backward;
  last_ = Clock::now();
}

std::vector<Profile::Row> Profile::rows() const {
  std::vector<Row> sorted = rows_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Row& a, const Row& b) { return a.total() > b.total(); });
  return sorted;
}

std::string Profile::text() const {
  double all = 0;
  for (const Row& row : rows_) all += row.total();
  std::string text = fmt::format("{:<24}{:>7}{:>13}{:>14}{:>8}\n", "op", "calls", "forward ms", "backward ms", "share");
  for (const Row& row : rows())
    text += fmt::format("{:<24}{:>7}{:>13.3f}{:>14.3f}{:>7.1f}%\n", row.op, row.calls, row.forward * 1e3,
                        row.backward * 1e3, all > 0 ? 100 * row.total() / all : 0);
  return text;
}

}  // namespace tapestry
