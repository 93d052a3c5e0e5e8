#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "core/parallel.h"
#include "core/tensor.h"

using namespace tapestry;

TEST_CASE("shapes: extents, strides, axes, broadcasting") {
  const Shape s{2, 3, 4};
  CHECK(s.numel() == 24);
  CHECK(s[-1] == 4);
  CHECK(s.rows() == 6);
  CHECK(s.strides()[0] == 12);
  CHECK(to_text(s) == "[2, 3, 4]");
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{0, 5}.numel() == 0);
  CHECK(s.axis("op", -3) == 0);
  CHECK_THROWS_WITH_AS(s.axis("op", 3), doctest::Contains("op: axis 3 is out of range for shape [2, 3, 4]"), Error);
  CHECK(broadcast("op", {2, 1}, {1, 3}) == Shape{2, 3});
  CHECK(broadcast("op", {1}, {5, 4}) == Shape{5, 4});
  CHECK(broadcast("op", {}, {0, 2}) == Shape{0, 2});
  CHECK_THROWS_WITH_AS(broadcast("add", {2, 3}, {2}), doctest::Contains("add: shapes [2, 3] and [2]"), Error);
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1, 1}), Error);
  CHECK_THROWS_AS(Shape{-1}, Error);
}

TEST_CASE("sizes that do not fit are rejected before anything is allocated") {
  constexpr std::int64_t kHuge = std::int64_t{1} << 32;
  CHECK_THROWS_AS((Shape{kHuge, kHuge}), Error);
  CHECK(Shape{kHuge, kHuge, 0}.numel() == 0);
  CHECK_THROWS_AS(empty({kHuge, kHuge / 8}), Error);
}

TEST_CASE("copies share, clone does not, views see writes and raise the version") {
  Tensor a = tensor({1, 2, 3, 4, 5, 6}, {3, 2});
  Tensor same = a, copy = a.clone(), rows = a.rows(1, 2), flat = a.reshape({6});
  CHECK(rows.shape() == Shape{2, 2});
  const std::uint32_t before = a.storage().version();
  rows.mutable_data<float>()[0] = 30;
  CHECK(a.storage().version() > before);
  CHECK(a.at(2) == 30);
  CHECK(same.at(2) == 30);
  CHECK(flat.at(2) == 30);
  CHECK(copy.at(2) == 3);
  CHECK_THROWS_WITH_AS(a.rows(2, 2), doctest::Contains("[2, 4) is outside"), Error);
  CHECK_THROWS_AS(a.reshape({4}), Error);
  CHECK_THROWS_WITH_AS(a.data<double>(), doctest::Contains("holds f32, but was read or written as f64"), Error);
  CHECK_THROWS_AS(Tensor().data<float>(), Error);
  CHECK_THROWS_AS(a.item(), Error);
}

TEST_CASE("fill, copy_from and dtype conversion") {
  Tensor t = full({5}, 2.5, DType::bf16);
  CHECK(t.at(4) == 2.5);
  Tensor target = zeros({5}, DType::f64);
  target.copy_from(t);
  CHECK(target.at(3) == 2.5);
  CHECK_THROWS_AS(target.copy_from(zeros({4})), Error);
  CHECK(same_bits(t.to(DType::f32).to(DType::bf16), t));
  CHECK_FALSE(same_bits(t, target));
  CHECK(from_values<std::int32_t>({70000}, {1}).to(DType::i64).at(0) == 70000);
}

TEST_CASE("F12 offsets beyond 2^31 are computed in 64 bits") {
  const Shape s{300000, 8960};
  CHECK(239674 * s.strides()[0] + (s.back() - 1) == 2147487999);
}

TEST_CASE("the pool reuses blocks, aligns them, counts them by category") {
  { const Tensor warm = empty({1000}); }
  const MemoryStats before = memory_stats();
  for (int i = 0; i < 100; ++i) {
    const MemoryScope scope(MemoryCategory::optimizer);
    const Tensor t = empty({1000});
    CHECK(reinterpret_cast<std::uintptr_t>(t.raw_data()) % 64 == 0);
    CHECK(memory_stats().current[2] - before.current[2] >= 4000);
  }
  const MemoryStats after = memory_stats();
  CHECK(after.current_total == before.current_total);
  CHECK(after.system_requests == before.system_requests);
  CHECK(after.peak[2] >= 4000);
  for (std::int64_t n : {1, 63, 64, 65, 1023, 1024, 1025, 5000, 1 << 20, (1 << 20) + 1, 50 << 20}) {
    Tensor t = empty({n}, DType::u8);
    t.fill(1);  // writes every byte asked for
    CHECK(t.at(n - 1) == 1);
  }
}

TEST_CASE("blocks freed by another thread come back") {
  std::vector<Tensor> made;
  for (int i = 0; i < 64; ++i) made.push_back(empty({100 + i}));
  const std::int64_t held = memory_stats().current_total;
  std::thread([m = std::move(made)]() mutable { m.clear(); }).join();
  CHECK(memory_stats().current_total < held);
  const std::int64_t requests = memory_stats().system_requests;
  for (int i = 0; i < 64; ++i) made.push_back(empty({100 + i}));
  CHECK(memory_stats().system_requests == requests);
}

TEST_CASE("parallel_for covers each index once, nests, and passes exceptions on") {
  for (int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    for (std::int64_t n : {0, 1, 2, 5, 100, 1001}) {
      std::vector<int> seen(static_cast<std::size_t>(n));
      parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          parallel_for(1, 1, [&](std::int64_t, std::int64_t) { ++seen[static_cast<std::size_t>(i)]; });
      });
      for (int count : seen) REQUIRE(count == 1);
    }
    CHECK_THROWS_WITH_AS(parallel_for(100, 1, [](std::int64_t, std::int64_t) { fail("planted"); }), "planted", Error);
  }
  const pid_t child = fork();  // has none of the threads, and must not wait for them
  if (child == 0) {
    std::atomic<int> covered{0};
    parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) { covered += static_cast<int>(end - begin); });
    _exit(covered == 100 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  set_num_threads(0);
  CHECK(num_threads() >= 1);
  CHECK_THROWS_AS(set_num_threads(-1), Error);
}
