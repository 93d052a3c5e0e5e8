// Grad: who may write where.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "autograd/ops.h"
#include "core/grad.h"

using namespace tapestry;

namespace {

GradSlot slot_like(const Tensor& t) { return {{}, t.shape(), t.dtype(), t.device(), false, false}; }

}  // namespace

TEST_CASE("claim_over takes the memory of a value that nobody else holds") {
  Tensor spent = tensor({1, 2, 3});
  GradSlot slot = slot_like(spent);
  const std::byte* memory = spent.raw_data();
  CHECK_FALSE(Grad(&slot).claim_over(spent));
  CHECK(slot.set);
  CHECK(slot.tensor.raw_data() == memory);
  spent = Tensor();

  SUBCASE("the next claim adds, there") {
    CHECK(Grad(&slot).claim());
    CHECK(slot.tensor.raw_data() == memory);
  }
  SUBCASE("a gradient that has memory keeps it") {
    const Tensor other = tensor({4, 5, 6});
    CHECK(Grad(&slot).claim_over(other));
    CHECK(slot.tensor.raw_data() == memory);
  }
}

TEST_CASE("claim_over leaves values alone that are shared or do not fit") {
  const Tensor spent = tensor({1, 2, 3});
  auto other_memory = [&](const Tensor& from, GradSlot slot) {
    CHECK_FALSE(Grad(&slot).claim_over(from));
    return slot.tensor.raw_data() != from.raw_data();
  };
  {
    const Tensor copy = spent;
    CHECK(other_memory(spent, slot_like(spent)));
  }
  CHECK(other_memory(spent, slot_like(tensor({1, 2}))));
  CHECK(other_memory(spent, slot_like(tensor({1, 2, 3}, {3}, DType::f64))));
  GradSlot pinned = slot_like(spent);
  pinned.tensor = zeros({3});
  pinned.pinned = true;
  CHECK_FALSE(Grad(&pinned).claim_over(spent));
  CHECK(pinned.tensor.raw_data() != spent.raw_data());
  CHECK(spent.to_vector<float>() == std::vector<float>{1, 2, 3});
}

TEST_CASE("a gradient handed to backward, a kept logit and a shared gradient survive kernels that work in place") {
  const Tensor x = tensor({-1, 0.5, 2});
  const Tensor dy = tensor({1, 2, 3});
  Tape tape;
  const Var v = tape.watch(x);
  const Var a = tanh(v), b = a + a;  // a's gradient is passed on twice
  tape.hook(a, [](const Tensor& g) { CHECK(g.to_vector<float>() == std::vector<float>{2, 4, 6}); });
  tape.backward(b, dy);
  CHECK(dy.to_vector<float>() == std::vector<float>{1, 2, 3});
  for (int i = 0; i < 3; ++i)
    CHECK(tape.grad(v).at(i) == doctest::Approx(2 * dy.at(i) * (1 - std::tanh(x.at(i)) * std::tanh(x.at(i)))));

  Tape second;
  const Var w = second.watch(tensor({1, 2, 3, 4}, {2, 2}));
  const Var kept = scale(w, 2);
  const Tensor before = kept.value().clone();
  second.backward(cross_entropy(kept, from_values<std::int32_t>({0, 1}, {2})).loss);
  CHECK(same_bits(kept.value(), before));
}

TEST_CASE("cross-entropy needs no second array of the logits' size") {
  const Shape shape{64, 4096};
  const Tensor x = full(shape, 0.5), targets = zeros({64}, DType::i32);
  const std::int64_t each = x.bytes();
  Tape tape;
  const Var v = tape.watch(x);
  const Var loss = cross_entropy(scale(v, 1), targets).loss;
  reset_peak_memory();
  const std::int64_t before = memory_stats().current_total;
  tape.backward(loss);
  CHECK(memory_stats().peak_total - before < each);
}
