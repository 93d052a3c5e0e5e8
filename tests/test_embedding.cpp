// Embedding kernels: row copies, ordered scatter, padding and bad ids.
#include "core/kernels/embedding.h"

#include <string>

#include "error_message.h"
#include "row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

Tensor ids_of(const std::vector<std::int64_t>& ids, DType dtype = DType::i64) {
  return from_values(ids, {static_cast<std::int64_t>(ids.size())}).to(dtype);
}

std::vector<std::int64_t> random_ids(std::int64_t count, std::int64_t bound) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(RandomKey{7, 7}.below(i, bound));
  return ids;
}

}  // namespace

TEST_CASE_TEMPLATE("forward copies rows, backward adds them up", T, float, double) {
  for (DType id_dtype : {DType::i32, DType::i64})
    for (std::int64_t count : kRows)
      for (std::int64_t width : kWidths) {
        constexpr std::int64_t kTableRows = 11;
        const Tensor table = random_normal({kTableRows, width}, dtype_of<T>, 1);
        const Tensor dy = random_normal({count, width}, dtype_of<T>, 2);
        const auto ids = random_ids(count, kTableRows);
        Tensor y = full({count, width}, kNaN, dtype_of<T>);
        cpu::embedding_forward(table, ids_of(ids, id_dtype), y);
        std::vector<double> right_y, right(static_cast<std::size_t>(kTableRows * width), 0.0);
        for (std::int64_t i = 0; i < count; ++i)
          for (std::int64_t c = 0; c < width; ++c) {
            const std::int64_t at = ids[static_cast<std::size_t>(i)] * width + c;
            right_y.push_back(table.at(at));
            right[static_cast<std::size_t>(at)] += dy.at(i * width + c);
          }
        check_close(y, right_y, 0);
        for (bool second : {false, true}) {
          Target dtable(table.shape(), dtype_of<T>, second);
          cpu::embedding_backward(dy, ids_of(ids, id_dtype), -1, dtable.grad());
          dtable.check(right, kTolerance<T>);
        }
      }
}

TEST_CASE("G09 Embedding gradient") {
  const auto gradient = [](const std::vector<std::int64_t>& ids, bool second) {
    Target dtable({5, 3}, DType::f32, second);
    cpu::embedding_backward(full({static_cast<std::int64_t>(ids.size()), 3}, 1), ids_of(ids), 0, dtable.grad());
    return dtable;
  };
  for (bool second : {false, true}) {
    gradient({0, 1, 1, 2}, second).check({0, 0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0}, 1e-6);
    for (std::size_t count : {769u, 5000u})
      gradient(std::vector<std::int64_t>(count, 0), second).check(std::vector<double>(15, 0.0), 0);
    std::vector<double> right(15, 0.0);
    right[3] = right[4] = right[5] = 769;
    gradient(std::vector<std::int64_t>(769, 1), second).check(right, 1e-6);
  }
  // A NaN that arrives at the padding row stays out of it.
  Target dtable({2, 1}, DType::f32, false);
  cpu::embedding_backward(full({3, 1}, kNaN), ids_of({0, 0, 0}), 0, dtable.grad());
  dtable.check({0, 0}, 0);
}

TEST_CASE("G10 Bad index or label") {
  const Tensor table = random_normal({5, 3}, DType::f32, 1);
  for (DType dtype : {DType::i32, DType::i64})
    for (std::int64_t bad : {5, -1}) {
      Tensor y = full({3, 3}, 7);
      const Tensor ids = ids_of({0, 4, bad}, dtype);
      check_error([&] { cpu::embedding_forward(table, ids, y); },
                  {"embedding: id " + std::to_string(bad), "position 2", "[0, 5)"});
      check_close(y, std::vector<double>(9, 7.0), 0);

      Target dtable(table.shape(), DType::f32, true);
      const Tensor before = dtable.tensor().clone();
      check_error([&] { cpu::embedding_backward(y, ids, -1, dtable.grad()); },
                  {"embedding_backward: id " + std::to_string(bad)});
      CHECK(same_bits(before, dtable.tensor()));

      cpu::embedding_forward(table, ids_of({0, 4, 1}, dtype), y);
      CHECK(y.at(5) == table.at(14));
    }
  Tensor y = empty({1, 3});
  CHECK(message_of([&] { cpu::embedding_forward(table, zeros({1}), y); }) ==
        "embedding: ids must be i32 or i64, not f32");
}

TEST_CASE("F10 an id beyond 16 bits") {
  Tensor table = zeros({119547, 2});
  table.mutable_data<float>()[2 * 70000] = 3;
  table.mutable_data<float>()[2 * 4464] = -1;
  for (DType dtype : {DType::i32, DType::i64}) {
    Tensor y = empty({1, 2});
    cpu::embedding_forward(table, ids_of({70000}, dtype), y);
    check_close(y, {3, 0}, 0);
    Target dtable(table.shape(), DType::f32, false);
    cpu::embedding_backward(y, ids_of({70000}, dtype), -1, dtable.grad());
    CHECK(dtable.tensor().at(2 * 70000) == 3);
    CHECK(dtable.tensor().at(2 * 4464) == 0);
  }
}

TEST_CASE_TEMPLATE("F12 rows at odd offsets", T, float, double) {
  for (std::int64_t width : {1, 17, 33, 129}) {
    const Tensor table = random_normal({5, width}, dtype_of<T>, 1), dy = random_normal({4, width}, dtype_of<T>, 2);
    const Tensor ids = ids_of({1, 4, 1, 0});
    Tensor y = empty({4, width}, dtype_of<T>);
    cpu::embedding_forward(table, ids, y);
    Target dtable(table.shape(), dtype_of<T>, false);
    cpu::embedding_backward(dy, ids, -1, dtable.grad());
    for (std::int64_t offset : {1, 2, 3}) {
      Tensor y_view = at_offset(zeros_like(y), offset);
      cpu::embedding_forward(at_offset(table, offset), at_offset(ids, offset), y_view);
      CHECK(same_bits(y, y_view));
      Target dtable_view(table.shape(), dtype_of<T>, false, offset);
      cpu::embedding_backward(at_offset(dy, offset), at_offset(ids, offset), -1, dtable_view.grad());
      CHECK(same_bits(dtable.tensor(), dtable_view.tensor()));
    }
  }
}

TEST_CASE("R03 100000 equal ids, same bits for any number of threads") {
  const Tensor dy = random_normal({100000, 40}, DType::f32, 1);
  const Tensor ids = ids_of(std::vector<std::int64_t>(100000, 1));
  check_same_bits_for_any_threads([&] {
    Target dtable({3, 40}, DType::f32, false);
    cpu::embedding_backward(dy, ids, -1, dtable.grad());
    return std::vector{dtable.tensor()};
  });
}
