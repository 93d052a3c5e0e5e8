// Learning-rate schedules against written-out tables, at their boundaries, and their argument checks.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "optim/schedule.h"

using namespace tapestry;

namespace {

// Compares updates 0, 1, 2, ... with a table.
void check_table(const Schedule& schedule, const std::vector<double>& table, double tolerance = 1e-7) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    CAPTURE(t);
    CHECK(std::abs(schedule(static_cast<std::int64_t>(t)) - table[t]) <= tolerance);
  }
}

}  // namespace

TEST_CASE("O11 warm-up and cosine boundaries") {
  SUBCASE("warm-up ends exactly at the base and never uses 0") {
    const Schedule s = warmup(4, constant(0.1));
    check_table(s, {0.025, 0.05, 0.075, 0.1, 0.1, 0.1});
    CHECK(s(3) == 0.1);
    CHECK(s(4) == 0.1);
    CHECK(warmup(3, constant(0.7))(2) == 0.7);
  }
  SUBCASE("without warm-up steps the base applies at once") {
    CHECK(warmup(0, constant(0.1))(0) == 0.1);
    check_table(warmup(0, cosine(0.5, 0, 5)), {0.5, 0.4522542});
  }
  SUBCASE("cosine stays at its end") {
    const Schedule s = cosine(0.5, 0, 5);
    check_table(s, {0.5, 0.4522542, 0.3272542, 0.1727458, 0.0477458, 0, 0, 0});
    CHECK(s(0) == 0.5);
    for (const std::int64_t t : {5, 6, 10, 1000000}) CHECK(s(t) == 0);
    const Schedule raised = cosine(0.1, 0.3, 7);
    CHECK(raised(0) == 0.1);
    CHECK(raised(7) == 0.3);
  }
  SUBCASE("the decay begins after the warm-up") {
    const Schedule s = warmup(2, cosine(0.5, 0.1, 2));
    check_table(s, {0.25, 0.5, 0.5, 0.3, 0.1, 0.1});
    CHECK(s(1) == 0.5);
    CHECK(s(2) == 0.5);
  }
}

TEST_CASE("every schedule follows its table and stays at its end") {
  check_table(constant(0.3), {0.3, 0.3, 0.3}, 0);
  check_table(linear_decay(1, 0.2, 4), {1, 0.8, 0.6, 0.4, 0.2, 0.2}, 1e-15);
  check_table(step_decay(1, 0.5, 3), {1, 1, 1, 0.5, 0.5, 0.5, 0.25}, 0);
  check_table(exponential(2, 0.5), {2, 1, 0.5, 0.25}, 0);
  check_table(warmup_stable_decay(0.8, 0.2, 2, 3, 2), {0.4, 0.8, 0.8, 0.8, 0.8, 0.8, 0.5, 0.2, 0.2}, 1e-15);

  const Schedule transformer = noam(512, 4000);
  CHECK(transformer(0) == doctest::Approx(1.746928107421711e-07).epsilon(1e-12));
  CHECK(transformer(3999) == doctest::Approx(6.987712429686843e-04).epsilon(1e-12));
  CHECK(transformer(15999) == doctest::Approx(3.4938562148434214e-04).epsilon(1e-12));
  CHECK(noam(512, 4000, 2)(0) == doctest::Approx(2 * transformer(0)));

  // PyTorch's OneCycleLR(max_lr=1, total_steps=10).
  const Schedule cycle = one_cycle(1, 10);
  check_table(cycle, {0.04, 0.52, 1, 0.9504846, 0.8117457, 0.6112620, 0.3887420, 0.1882583, 0.0495194, 4e-6, 4e-6});
  CHECK(cycle(2) == 1);
  CHECK(cycle(9) == 1 / 25.0 / 1e4);
}

TEST_CASE("schedules of no steps are at their end at once") {
  CHECK(cosine(0.5, 0.1, 0)(0) == 0.1);
  CHECK(linear_decay(0.5, 0.1, 0)(0) == 0.1);
  CHECK(warmup_stable_decay(0.5, 0.1, 0, 0, 0)(0) == 0.1);
  CHECK(one_cycle(0.5, 1)(0) == 0.5);
  CHECK(one_cycle(0.5, 4, 0)(0) == 0.5);
  CHECK(one_cycle(0.5, 4, 1)(3) == 0.5);
}

TEST_CASE("wrong arguments throw where the schedule is made") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const double bad : {-0.1, nan, inf}) {
    CHECK_THROWS_AS(constant(bad), Error);
    CHECK_THROWS_AS(cosine(bad, 0, 5), Error);
    CHECK_THROWS_AS(cosine(0.1, bad, 5), Error);
    CHECK_THROWS_AS(linear_decay(bad, 0, 5), Error);
    CHECK_THROWS_AS(step_decay(bad, 0.5, 5), Error);
    CHECK_THROWS_AS(step_decay(0.1, bad, 5), Error);
    CHECK_THROWS_AS(exponential(bad, 0.5), Error);
    CHECK_THROWS_AS(noam(512, 10, bad), Error);
    CHECK_THROWS_AS(one_cycle(bad, 5), Error);
    CHECK_THROWS_AS(one_cycle(0.1, 5, bad), Error);
    CHECK_THROWS_AS(one_cycle(0.1, 5, 0.3, bad), Error);
    CHECK_THROWS_AS(warmup_stable_decay(bad, 0, 1, 1, 1), Error);
  }
  CHECK_THROWS_WITH_AS(warmup(-1, constant(0.1)), "warmup: steps must be at least 0, not -1", Error);
  CHECK_THROWS_AS(warmup(3, nullptr), Error);
  CHECK_THROWS_AS(cosine(0.1, 0, -1), Error);
  CHECK_THROWS_AS(step_decay(0.1, 0.5, 0), Error);
  CHECK_THROWS_AS(noam(0, 10), Error);
  CHECK_THROWS_AS(noam(512, 0), Error);
  CHECK_THROWS_AS(one_cycle(0.1, 0), Error);
  CHECK_THROWS_AS(warmup_stable_decay(0.1, 0, 1, 1, -1), Error);
}
