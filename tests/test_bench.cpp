// tapestry bench and the Profile behind it: what they print and that it adds up. Nothing here depends on speed.
#include <doctest/doctest.h>

#include <fstream>
#include <regex>

#include "autograd/ops.h"
#include "autograd/profile.h"
#include "tests/run_command.h"

using namespace tapestry;

TEST_CASE("Profile counts every op, forward and backward, and laps") {
  const Tensor x = full({64, 64}, 0.5);
  Profile profile;
  {
    Tape tape;
    Var y = tape.watch(x);
    for (int i = 0; i < 3; ++i) y = tanh(y);
    tape.backward(sum(y));
  }
  profile.lap("the rest");
  const std::vector<Profile::Row> rows = profile.rows();
  REQUIRE(rows.size() == 3);
  for (std::size_t i = 1; i < rows.size(); ++i) CHECK(rows[i - 1].total() >= rows[i].total());
  for (const Profile::Row& row : rows) {
    CAPTURE(row.op);
    CHECK(row.calls == (row.op == "tanh" ? 3 : 1));
    CHECK((row.backward > 0) == (row.op != "the rest"));
    CHECK(row.forward >= 0);
  }
  CHECK(profile.text().find("tanh") != std::string::npos);
}

TEST_CASE("Profiles nest: only the innermost measures") {
  Profile outer;
  {
    Profile inner;
    Tape tape;
    tanh(tape.watch(full({2}, 1)));
    CHECK(inner.rows().size() == 1);
  }
  CHECK(outer.rows().empty());
  CHECK(Profile::current() == &outer);
}

TEST_CASE("bench step prints one line that other tools can read") {
  const Ended ended = run({"bench", "step", "--config", "tiny", "--steps", "2", "--warmup", "1", "--threads", "2"});
  CHECK(ended.code == 0);
  const std::regex line(
      R"(peer=tapestry config=tiny threads=2 median_ms=[\d.]+ min_ms=[\d.]+ tokens_per_s=\d+ peak_rss_mb=\d+ )"
      R"(first_step_s=[\d.]+ gflops=[\d.]+ loss=[\d.]+->[\d.]+\n)");
  CHECK_MESSAGE(std::regex_match(ended.out, line), ended.out);
}

TEST_CASE("bench step --profile adds a table of ops and the memory") {
  const Ended ended = run({"bench", "step", "--steps", "1", "--warmup", "1", "--profile"});
  CHECK(ended.code == 0);
  for (const std::string part : {"linear_gelu", "attention", "AdamW.step", "memory at its peak: parameters"})
    CHECK_MESSAGE(ended.err.find(part) != std::string::npos, ended.err);
}

TEST_CASE("bench: mistakes") {
  const auto fails = [](const Words& words, const std::string& part) {
    const Ended ended = run(words);
    CHECK(ended.code == 2);
    CHECK_MESSAGE(ended.err.find(part) != std::string::npos, ended.err);
  };
  CHECK(run({"bench"}).code == 2);
  fails({"bench", "stpe"}, "topic 'stpe' is unknown (did you mean step?)");
  fails({"bench", "step", "--config", "tinny"}, "--config must be tiny, c384 or g124, not 'tinny'");
  fails({"bench", "step", "--dtype", "f64"}, "f64");
  fails({"bench", "gemm", "--dtype", "i32"}, "--dtype must be f32, f64, bf16 or f16, not 'i32'");
  fails({"bench", "step", "--warmup", "0"}, "--warmup at least 1");
  fails({"bench", "sample", "--batch", "0"}, "--batch must be at least 1");
  fails({"bench", "scaling", "--seconds", "0"}, "--seconds must be above 0");
}
