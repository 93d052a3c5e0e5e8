// Where the time of a training step goes, op by op.
//
//   Profile profile;
//   { Tape tape; tape.backward(model.loss(x, y).loss); }
//   optimizer.step({.lr = 1e-3});
//   profile.lap("AdamW.step");
//   std::cout << profile.text();
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry {

// While it lives, every op that this thread records is timed: forward from one record to the next, so what runs
// unrecorded in between counts for the op that follows, and backward by itself. Costs two clock readings an op.
// Profiles nest; only the innermost measures.
class Profile {
 public:
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // The time since the last record or lap counts as forward time of `name`.
  void lap(std::string_view name) { count(name, false); }

  struct Row {
    std::string op;
    std::int64_t calls = 0;            // laps and records
    double forward = 0, backward = 0;  // seconds, of all calls
    double total() const { return forward + backward; }
  };
  std::vector<Row> rows() const;  // the most expensive first
  std::string text() const;       // as a table, in ms and percent

  // Not for use outside of Tape.
  void count(std::string_view op, bool backward);
  static Profile* current();

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Row> rows_;
  Clock::time_point last_;
  Profile* outer_;
};

}  // namespace tapestry
