// f16 and bf16 in kernels: copies in f32 around those that know f32 only (core/kernels/widen.h), and the bits of those
// that read and write 16 bits themselves, which must be the f32 result rounded once, whatever the mixture of types.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "autograd/ops.h"
#include "core/kernels/cross_entropy.h"
#include "core/kernels/dropout.h"
#include "core/kernels/layernorm.h"
#include "core/kernels/pointwise.h"
#include "core/kernels/rmsnorm.h"
#include "core/kernels/strided_copy.h"
#include "core/parallel.h"
#include "core/random.h"
#include "tests/allocation_counter.h"

namespace tapestry {

// y[0] = 2 a[0] + b[0], the rest of y is left alone.
TAP_KERNEL(test_write_first, const Tensor& a, const Tensor& b, Tensor& y)
// dx = or += dy + saved, in the memory of dy where that may be; dz is claimed if asked for.
TAP_KERNEL(test_add_up, const Tensor& dy, const Tensor& saved, bool over, bool both, Grad dx, Grad dz)

namespace cpu {
void test_write_first(const Tensor& a, const Tensor& b, Tensor& y) {
  y.mutable_data<float>()[0] = 2 * a.data<float>()[0] + b.data<float>()[0];
}
void test_add_up(const Tensor& dy, const Tensor& saved, bool over, bool both, Grad dx, Grad dz) {
  if (both && dz) dz.pass(dy);
  const bool add = over ? dx.claim_over(dy) : dx.claim();
  for (std::int64_t i = 0; i < dy.numel(); ++i)
    dx.data<float>()[i] = (add ? dx.data<float>()[i] : 0) + dy.data<float>()[i] + saved.data<float>()[i];
}
}  // namespace cpu

namespace {

constexpr std::array kTypes{DType::f32, DType::f16, DType::bf16};

Tensor noise(const Shape& shape, std::uint64_t stream, DType dtype) {
  Tensor t = empty(shape);
  fill_normal(t, 0, 1, RandomKey{5, stream});
  return t.to(dtype);
}

// A gradient to write to: without memory, or holding values that are added to.
struct Slot {
  Slot(const Shape& shape, DType dtype, bool second, DType values) {
    slot.shape = shape;
    slot.dtype = dtype;
    slot.set = second;
    if (second) slot.tensor = noise(shape, 99, values).to(dtype);
  }
  Grad grad() { return Grad(&slot, &writes); }
  GradSlot slot;
  std::uint8_t writes = 0;
};

// Is `got` what f32 arithmetic on the same values gives, rounded once?
void check_rounded(const Tensor& got, const Tensor& wide) { CHECK(same_bits(got, wide.to(got.dtype()))); }

// Calls f(types) for every combination of k types, but that of f32 alone.
template <std::size_t k, class F>
void for_each_mixture(F f) {
  std::size_t count = 1;
  for (std::size_t i = 0; i < k; ++i) count *= kTypes.size();
  for (std::size_t n = 1; n < count; ++n) {
    std::array<DType, k> types{};
    std::size_t rest = n;
    for (DType& t : types) {
      t = kTypes[rest % kTypes.size()];
      rest /= kTypes.size();
    }
    CAPTURE(n);
    f(types);
  }
}

}  // namespace

TEST_CASE("widen: a kernel that writes a part of its output leaves the other bits alone") {
  for_each_mixture<3>([](const std::array<DType, 3>& types) {
    Tensor y = noise({5}, 3, types[2]);
    const Tensor before = y.clone(), a = tensor({1.5, 9}).to(types[0]), b = tensor({0.25}).to(types[1]);
    TAP_DISPATCH(test_write_first, a, b, y);
    CHECK(y.at(0) == 3.25);
    CHECK(same_bits(y.rows(1, 4), before.rows(1, 4)));
    CHECK(a.at(1) == 9);
  });
}

TEST_CASE("widen: gradients are assigned, added to, taken over, passed or left, and counted once") {
  for_each_mixture<3>([](const std::array<DType, 3>& types) {
    for (const bool second : {false, true})
      for (const bool over : {false, true}) {
        const Tensor dy = noise({7}, 1, types[0]), saved = noise({7}, 2, types[1]);
        const Tensor dy_before = dy.clone();
        Slot dx({7}, types[2], second, types[2]), dz({7}, types[2], second, types[2]);
        TAP_DISPATCH(test_add_up, dy, saved, over, true, dx.grad(), dz.grad());
        CHECK((dx.writes == 1 && dz.writes == 1));
        CHECK((dx.slot.set && dz.slot.set));
        for (std::int64_t i = 0; i < 7; ++i) {
          const float old = second ? static_cast<float>(noise({7}, 99, types[2]).at(i)) : 0.0f;
          const float d = static_cast<float>(dy_before.at(i)), s = static_cast<float>(saved.at(i));
          CHECK(dx.slot.tensor.at(i) == full({}, old + d + s).to(types[2]).item());
          CHECK(dz.slot.tensor.at(i) == full({}, old + d).to(types[2]).item());
        }
      }
  });
  SUBCASE("a gradient that is not claimed stays unset, an empty one empty") {
    const Tensor dy = noise({7}, 1, DType::bf16);
    Slot dx({7}, DType::bf16, false, DType::bf16), dz({7}, DType::f16, false, DType::f16);
    TAP_DISPATCH(test_add_up, dy, dy, false, false, dx.grad(), dz.grad());
    CHECK((dz.writes == 0 && !dz.slot.set && !dz.slot.tensor));
    TAP_DISPATCH(test_add_up, dy, dy, false, true, dx.grad(), Grad());
    CHECK(dx.writes == 2);
  }
}

TEST_CASE("widen: f32 arguments go through untouched, and nothing is allocated on the heap") {
  Tensor dy = noise({7}, 1, DType::f32);
  const std::byte* memory = dy.raw_data();
  Slot dx({7}, DType::f32, false, DType::f32);
  const Tensor saved = noise({7}, 2, DType::f32);
  TAP_DISPATCH(test_add_up, dy, saved, true, false, dx.grad(), Grad());
  CHECK(dx.slot.tensor.raw_data() == memory);

  const Tensor low = noise({700}, 1, DType::bf16);
  auto step = [&] {
    Slot target({700}, DType::f16, true, DType::f16);
    TAP_DISPATCH(test_add_up, low, low, false, true, target.grad(), target.grad());
  };
  step();
  step();
  const std::int64_t before = heap_allocations;
  step();
  CHECK(heap_allocations == before);
}

TEST_CASE("pointwise kernels on any mixture give the f32 result rounded once") {
  const Shape shape{3, 1300};
  for_each_mixture<3>([&](const std::array<DType, 3>& types) {
    const Tensor a = noise(shape, 1, types[0]), x = a.to(DType::f32);
    for (const Shape& other : {shape, Shape{1300}, Shape{3, 1}, Shape{}}) {
      const Tensor b = noise(other, 2, types[1]);
      Tensor y = empty(shape, types[2]), wide = empty(shape);
      TAP_DISPATCH(add_forward, a, b, y);
      TAP_DISPATCH(add_forward, x, b.to(DType::f32), wide);
      check_rounded(y, wide);
      for (const bool second : {false, true}) {
        Slot da(shape, types[2], second, types[2]), db(other, types[1], second, types[1]);
        Slot wide_da(shape, DType::f32, second, types[2]), wide_db(other, DType::f32, second, types[1]);
        const Tensor dy = noise(shape, 3, types[2]);
        TAP_DISPATCH(mul_backward, dy, a, b, shape, other, da.grad(), db.grad());
        TAP_DISPATCH(mul_backward, dy.to(DType::f32), x, b.to(DType::f32), shape, other, wide_da.grad(),
                     wide_db.grad());
        check_rounded(da.slot.tensor, wide_da.slot.tensor);
        check_rounded(db.slot.tensor, wide_db.slot.tensor);
      }
    }
    Tensor y = empty(shape, types[2]), wide = empty(shape);
    TAP_DISPATCH(gelu_tanh_forward, a, y);
    TAP_DISPATCH(gelu_tanh_forward, x, wide);
    check_rounded(y, wide);
    for (const bool second : {false, true}) {
      Slot dx(shape, types[2], second, types[2]), wide_dx(shape, DType::f32, second, types[2]);
      const Tensor saved = noise(shape, 4, types[1]), dy = a.clone();  // its memory may be taken over
      TAP_DISPATCH(gelu_backward, x.clone(), saved.to(DType::f32), wide_dx.grad());
      TAP_DISPATCH(gelu_backward, dy, saved, dx.grad());
      check_rounded(dx.slot.tensor, wide_dx.slot.tensor);
    }
  });
}

TEST_CASE("norms on any mixture give the f32 result rounded once") {
  for (const Shape& shape : {Shape{37, 33}, Shape{2, 1031}})
    for_each_mixture<3>([&](const std::array<DType, 3>& types) {
      const std::int64_t n = shape.back(), rows = shape.rows();
      const Tensor x = noise(shape, 1, types[0]), wide_x = x.to(DType::f32), dy = noise(shape, 2, types[1]);
      const Tensor w = noise({n}, 3, types[2]), b = noise({n}, 4, types[2]);
      const Tensor wide_w = w.to(DType::f32), wide_b = b.to(DType::f32);
      Tensor y = empty(shape, types[1]), mean = empty({rows}), rstd = empty({rows});
      Tensor wide_y = empty(shape), wide_mean = empty({rows}), wide_rstd = empty({rows});
      TAP_DISPATCH(layernorm_forward, x, w, b, 1e-5, y, mean, rstd);
      TAP_DISPATCH(layernorm_forward, wide_x, wide_w, wide_b, 1e-5, wide_y, wide_mean, wide_rstd);
      check_rounded(y, wide_y);
      check_rounded(mean, wide_mean);
      check_rounded(rstd, wide_rstd);
      for (const bool second : {false, true}) {
        // dx of another type than x: rounded from the same f32 values all the same.
        Slot dx(shape, types[2], second, types[2]), dw({n}, types[2], second, types[2]),
            db({n}, types[0], second, types[0]);
        Slot wide_dx(shape, DType::f32, second, types[2]), wide_dw({n}, DType::f32, second, types[2]);
        Slot wide_db({n}, DType::f32, second, types[0]);
        TAP_DISPATCH(layernorm_backward, dy.clone(), x, w, mean, rstd, dx.grad(), dw.grad(), db.grad());
        TAP_DISPATCH(layernorm_backward, dy.clone().to(DType::f32), wide_x, wide_w, mean, rstd, wide_dx.grad(),
                     wide_dw.grad(), wide_db.grad());
        check_rounded(dx.slot.tensor, wide_dx.slot.tensor);
        check_rounded(dw.slot.tensor, wide_dw.slot.tensor);
        check_rounded(db.slot.tensor, wide_db.slot.tensor);
      }
      TAP_DISPATCH(rmsnorm_forward, x, w, 1e-5, y, rstd);
      TAP_DISPATCH(rmsnorm_forward, wide_x, wide_w, 1e-5, wide_y, wide_rstd);
      check_rounded(y, wide_y);
      check_rounded(rstd, wide_rstd);
      for (const bool second : {false, true}) {
        Slot dx(shape, types[0], second, types[0]), dw({n}, types[2], second, types[2]);
        Slot wide_dx(shape, DType::f32, second, types[0]), wide_dw({n}, DType::f32, second, types[2]);
        TAP_DISPATCH(rmsnorm_backward, dy, x, w, rstd, dx.grad(), dw.grad());
        TAP_DISPATCH(rmsnorm_backward, dy.to(DType::f32), wide_x, wide_w, rstd, wide_dx.grad(), wide_dw.grad());
        check_rounded(dx.slot.tensor, wide_dx.slot.tensor);
        check_rounded(dw.slot.tensor, wide_dw.slot.tensor);
      }
    });
}

TEST_CASE("layernorm's gradient takes over the memory of a 16-bit dy") {
  const Tensor x = noise({9, 65}, 1, DType::bf16), w = noise({65}, 2, DType::f32);
  Tensor dy = noise({9, 65}, 3, DType::bf16), mean = empty({9}), rstd = empty({9}), y = empty({9, 65}, DType::bf16);
  TAP_DISPATCH(layernorm_forward, x, w, w, 1e-5, y, mean, rstd);
  Slot dx({9, 65}, DType::bf16, false, DType::bf16), other = dx;
  TAP_DISPATCH(layernorm_backward, dy.clone(), x, w, mean, rstd, other.grad(), Grad(), Grad());
  const std::byte* memory = dy.raw_data();
  TAP_DISPATCH(layernorm_backward, dy, x, w, mean, rstd, dx.grad(), Grad(), Grad());
  CHECK(dx.slot.tensor.raw_data() == memory);
  CHECK(same_bits(dx.slot.tensor, other.slot.tensor));
}

TEST_CASE("cross_entropy of 16-bit logits: f32 loss, gradient in place") {
  const Shape shape{5, 131};
  const Tensor targets = tensor({3, 130, -100, 0, 7}).to(DType::i32), weights = full({131}, 0.5);
  for_each_mixture<2>([&](const std::array<DType, 2>& types) {
    for (const bool second : {false, true})
      for (const double smoothing : {0.0, 0.1}) {
        CrossEntropyOptions options{.label_smoothing = smoothing, .z_loss = 0.1};
        if (smoothing > 0) options.class_weights = weights;
        Tensor logits = noise(shape, 1, types[0]), loss = empty({}, types[1]), wide_loss = empty({});
        const Tensor wide = logits.clone().to(DType::f32), dloss = full({}, 3);
        Tensor stats = empty({5, 2}), wide_stats = empty({5, 2});
        CrossEntropyCounts counts, wide_counts;
        TAP_DISPATCH(cross_entropy_forward, logits, targets, options, loss, stats, counts);
        TAP_DISPATCH(cross_entropy_forward, wide, targets, options, wide_loss, wide_stats, wide_counts);
        check_rounded(loss, wide_loss);
        check_rounded(stats, wide_stats);
        Slot dx(shape, types[0], second, types[0]), wide_dx(shape, DType::f32, second, types[0]);
        TAP_DISPATCH(cross_entropy_backward, dloss, wide, targets, options, stats, counts, wide_dx.grad());
        const std::byte* memory = logits.raw_data();
        TAP_DISPATCH(cross_entropy_backward, dloss, logits, targets, options, stats, counts, dx.grad());
        check_rounded(dx.slot.tensor, wide_dx.slot.tensor);
        CHECK((dx.slot.tensor.raw_data() == memory) == !second);
      }
  });
}

TEST_CASE("dropout and strided copies on any mixture") {
  const Shape shape{3, 700};
  const RandomKey key{1, 2};
  for_each_mixture<2>([&](const std::array<DType, 2>& types) {
    const Tensor x = noise(shape, 1, types[0]), wide_x = x.to(DType::f32);
    for (const double p : {0.0, 0.3, 1.0}) {
      Tensor y = empty(shape, types[1]), wide_y = empty(shape);
      TAP_DISPATCH(dropout_forward, x, p, key, y);
      TAP_DISPATCH(dropout_forward, wide_x, p, key, wide_y);
      check_rounded(y, wide_y);
      for (const bool second : {false, true}) {
        Slot dx(shape, types[1], second, types[1]), wide_dx(shape, DType::f32, second, types[1]);
        TAP_DISPATCH(dropout_backward, x, p, key, dx.grad());
        TAP_DISPATCH(dropout_backward, wide_x, p, key, wide_dx.grad());
        check_rounded(dx.slot.tensor, wide_dx.slot.tensor);
      }
    }
    const StridedLayout packed{0, shape.strides()}, turned{0, {1, 3}};
    for (const StridedLayout& to : {packed, turned}) {
      Tensor y = noise({2100}, 2, types[1]), wide_y = y.to(DType::f32).clone();
      TAP_DISPATCH(strided_add, x, packed, shape, to, y);
      TAP_DISPATCH(strided_add, wide_x, packed, shape, to, wide_y);
      check_rounded(y, wide_y);
      TAP_DISPATCH(strided_copy, x, packed, shape, to, y);
      TAP_DISPATCH(strided_copy, wide_x, packed, shape, to, wide_y);
      check_rounded(y, wide_y);
    }
  });
}

TEST_CASE("R03 16-bit kernels give the same bits on any number of threads") {
  const Tensor x = noise({257, 300}, 1, DType::bf16), w = noise({300}, 2, DType::f32);
  auto run = [&](int threads) {
    set_num_threads(threads);
    Tape tape;
    const Var v = tape.watch(x), g = tape.watch(w);
    const Var y = gelu(v) * v + layernorm(v, Var(w.to(DType::bf16)), Var(w.to(DType::bf16)));
    tape.backward(sum(y * y));
    set_num_threads(0);
    return std::array{y.value(), tape.grad(v)};
  };
  const auto first = run(1);
  for (const int threads : {2, 3}) {
    const auto again = run(threads);
    CHECK(same_bits(first[0], again[0]));
    CHECK(same_bits(first[1], again[1]));
  }
}

TEST_CASE("O12 reductions in half: f16 and bf16 are summed in f32") {
  auto mixed_signs = [](DType d) { return tensor({32000, 32000, 32000, 32000, -32000, -32000, -32000, -32000}).to(d); };
  for (const DType d : {DType::f16, DType::bf16}) {
    CHECK(sum(full({4096}, 1, d)).item() == 4096);
    CHECK(mean(full({4}, 32768, d)).item() == 32768);
    CHECK(sum(mixed_signs(d)).item() == 0);
    CHECK(sum(full({4096, 3}, 1, d), {0}).value().at(2) == 4096);
    CHECK(norm(full({10000}, 200, d)).item() == doctest::Approx(20000).epsilon(4e-3));
    CHECK(logsumexp(full({4096}, 0, d)).item() == doctest::Approx(std::log(4096.0)).epsilon(4e-3));
    CHECK(softmax(full({4096}, 3, d)).value().at(77) == 0x1p-12);
  }
}

TEST_CASE("O13 bf16 conversion of whole tensors") {
  const Tensor x = tensor({.26914088, 1.00390625, 1.01171875, 3.4028234663852886e38, 3.14});
  const std::vector<double> right{.26953125, 1, 1.015625, INFINITY, 3.140625};
  for (std::int64_t i = 0; i < 5; ++i) CHECK(x.to(DType::bf16).at(i) == right[static_cast<std::size_t>(i)]);
  CHECK(std::isnan(full({}, std::bit_cast<float>(0x7f800001u)).to(DType::bf16).item()));
  Tensor nan = empty({33});
  for (std::int64_t i = 0; i < 33; ++i) nan.mutable_data<float>()[i] = std::bit_cast<float>(0x7f800001u);
  for (std::int64_t i = 0; i < 33; ++i)
    CHECK((std::isnan(nan.to(DType::bf16).at(i)) && std::isnan(nan.to(DType::f16).at(i))));
}

TEST_CASE("A08 fp16 scores overflow, and mask constants that fp16 cannot hold") {
  for (const DType d : {DType::f16, DType::bf16, DType::f32}) {
    Tensor v = empty({1, 2, 1, 64});
    for (std::int64_t i = 0; i < 128; ++i) v.mutable_data<float>()[i] = i < 64 ? 2 : 4;
    const Tensor k = full({1, 2, 1, 64}, 40, d);
    const Tensor one = attention(full({1, 1, 1, 64}, 40, d), k, v.to(d)).value();
    for (std::int64_t i = 0; i < 64; ++i) CHECK(one.at(i) == 3);
    Tape tape;
    const Var q = tape.watch(k.clone()), both = attention(q, k, v.to(d), {.causal = true});
    for (std::int64_t i = 0; i < 64; ++i) CHECK((both.value().at(i) == 2 && both.value().at(64 + i) == 3));
    tape.backward(sum(both));
    for (std::int64_t i = 0; i < 128; ++i) CHECK(std::isfinite(tape.grad(q).at(i)));
    // -1e9 is -inf in f16: the key is hidden as well.
    const Tensor hidden =
        attention(full({1, 1, 1, 64}, 40, d), k, v.to(d), {}, tensor({0, -1e9}, {1, 1, 1, 2}).to(d)).value();
    CHECK(hidden.at(5) == 2);
  }
}

TEST_CASE("N01 LayerNorm of f16 values beyond 256, whose squares overflow f16") {
  constexpr std::int64_t kWidth = 64;
  Tensor x = empty({1, kWidth});
  for (std::int64_t i = 0; i < kWidth; ++i) x.mutable_data<float>()[i] = static_cast<float>(i % 2 ? 1000 : -600 - i);
  x = x.to(DType::f16);
  // Half precision all the way: every square is infinite, so the result is 0 or NaN.
  Half squares(0.0f);
  for (std::int64_t i = 0; i < kWidth; ++i) {
    const Half square(static_cast<float>(x.at(i) * x.at(i)));
    squares = Half(static_cast<float>(squares) + static_cast<float>(square));
  }
  CHECK(std::isinf(static_cast<float>(squares)));
  CHECK(static_cast<float>(Half(1000.0f / std::sqrt(static_cast<float>(squares)))) == 0);

  double average = 0, variance = 0;
  for (std::int64_t i = 0; i < kWidth; ++i) average += x.at(i) / kWidth;
  for (std::int64_t i = 0; i < kWidth; ++i) variance += (x.at(i) - average) * (x.at(i) - average) / kWidth;
  const Tensor ones = full({kWidth}, 1, DType::f16), none = zeros({kWidth}, DType::f16);
  Tape tape;
  const Var v = tape.watch(x);
  const Var y = layernorm(v, ones, none), z = rmsnorm(v, ones);
  for (std::int64_t i = 0; i < kWidth; ++i) {
    CHECK(y.value().at(i) == doctest::Approx((x.at(i) - average) / std::sqrt(variance)).epsilon(1e-3));
    CHECK(z.value().at(i) == doctest::Approx(x.at(i) / std::sqrt(variance + average * average)).epsilon(1e-3));
  }
  tape.backward(sum(y * y + z));
  for (std::int64_t i = 0; i < kWidth; ++i) CHECK(std::isfinite(tape.grad(v).at(i)));
}

}  // namespace tapestry
