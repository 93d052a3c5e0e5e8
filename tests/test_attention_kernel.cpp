// The attention kernels against a naive reference: sizes, layouts, masks, grouped heads, dropout; numeric gradients;
// thread counts; and the attention cases of other frameworks, named A01 to A10.
#include <doctest/doctest.h>

#include "attention_reference.h"
#include "core/parallel.h"

namespace tapestry::attention_test {
namespace {

// 16-bit results against exact ones, in roundings of a number near 1. Gradients see the rounded output, and in bf16
// rounded weights and dS; a broadcast dmask sums the errors of many rows.
void check_close(const Results& got, const Results& expected, DType dtype) {
  const double rounding = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  CHECK(difference(got.lse, expected.lse) < 1e-6);
  CHECK(difference(got.out, expected.out) < 1.5 * rounding);
  for (const auto& [g, e] : {std::pair(got.dq, expected.dq), {got.dk, expected.dk}, {got.dv, expected.dv}})
    CHECK(difference(g, e) < 12 * rounding);
  CHECK(difference(got.dmask, expected.dmask) < 20 * rounding);
}

// Every dtype, first and second write, against the reference on the numbers as they are stored.
void check_against_reference(const Options& o) {
  INFO(describe(o));
  const Setup s = make_setup(o);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    CAPTURE(dtype);
    const Setup stored = rounded(s, dtype);
    for (const bool add : {false, true}) {
      Results expected = make_results(stored, DType::f64, add);
      for (Tensor* t : {&expected.dq, &expected.dk, &expected.dv, &expected.dmask})
        if (add && *t) *t = t->to(dtype).to(DType::f64);
      if (s.k.storage() == s.q.storage()) expected.dk = expected.dv = expected.dq;
      reference(stored, expected, add);
      check_close(run_kernels(stored, dtype, add), expected, dtype);
    }
  }
  for (const bool add : {false, true}) {
    const Results expected = reference(s, add);
    CHECK(difference(run_kernels(s, DType::f64, add), expected) < 1e-11);
    CHECK(difference(run_kernels(s, DType::f32, add), expected) < 3e-5);
  }
}

Setup values_only(std::initializer_list<double> v) {  // one query, q = k = 0, D = 1
  const auto keys = static_cast<std::int64_t>(v.size());
  Setup s = plain_setup(1, 1, 1, 1, keys, 1);
  s.v = tensor(v, {1, keys, 1, 1}, DType::f64);
  return s;
}
Tensor keep_mask(const std::vector<std::uint8_t>& values, const Shape& shape) { return from_values(values, shape); }

TEST_CASE("sizes, layouts, masks and options agree with the reference") {
  constexpr std::int64_t kHeads[][2] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}, {6, 2}};
  unsigned turn = 0;
  for (const std::int64_t queries : {1, 2, 3, 5, 17, 33, 64, 65, 100}) {
    for (const std::int64_t dim : {1, 4, 5, 16, 32, 33, 64}) {
      for (int variant = 0; variant < 2; ++variant) {
        turn = turn * 1664525 + 1013904223;
        const unsigned dice = turn >> 8;
        Options o{.batch = 1 + dice % 2, .queries = queries, .keys = queries, .dim = dim};
        o.heads = kHeads[dice / 2 % 5][0], o.kv_heads = kHeads[dice / 2 % 5][1];
        o.layout = static_cast<Layout>(dice / 16 % 3);
        if (o.layout != Layout::packed)
          o.keys = std::max<std::int64_t>(1, queries + static_cast<int>(dice % 4) * 7 - 7);
        o.mask = static_cast<MaskKind>(dice / 64 % 3);
        o.broadcast = static_cast<int>(dice / 256 % 16);
        o.causal = dice / 4096 % 2;
        o.lengths = dice / 8192 % 4 == 0;
        o.dropout = dice / 32768 % 3 == 0 ? 0.3 : 0;
        check_against_reference(o);
      }
    }
  }
}

TEST_CASE("every broadcast of both masks, causal or not") {
  for (const MaskKind kind : {MaskKind::keep, MaskKind::add})
    for (int broadcast = 0; broadcast < 16; ++broadcast)
      for (const bool causal : {false, true})
        check_against_reference({.heads = 4,
                                 .kv_heads = 2,
                                 .queries = 7,
                                 .keys = 9,
                                 .mask = kind,
                                 .broadcast = broadcast,
                                 .causal = causal,
                                 .dropout = causal ? 0.25 : 0.0});
}

TEST_CASE("several query blocks, longer and shorter than the keys") {
  check_against_reference({.batch = 1, .queries = 150, .keys = 150, .dim = 20, .causal = true});
  check_against_reference({.batch = 1, .queries = 130, .keys = 40, .dim = 8, .causal = true});
  check_against_reference({.batch = 1, .queries = 40, .keys = 130, .dim = 8, .causal = true, .lengths = true});
}

TEST_CASE("numeric gradients") {
  for (const double dropout : {0.0, 0.4}) {
    Setup s = make_setup({.heads = 4,
                          .queries = 3,
                          .keys = 4,
                          .dim = 3,
                          .mask = MaskKind::add,
                          .broadcast = 1,
                          .causal = true,
                          .dropout = dropout});
    const Results r = run_kernels(s, DType::f64);
    const auto loss = [&] {
      Tensor out = full(s.dout.shape(), 0, DType::f64), lse = empty(r.lse.shape(), DType::f64);
      cpu::attention_forward(s.q, s.k, s.v, s.mask, s.problem, out, lse);
      double sum = 0;
      for (std::int64_t i = 0; i < out.numel(); ++i) sum += out.at(i) * s.dout.at(i);
      return sum;
    };
    const std::pair<Tensor*, Tensor> pairs[] = {{&s.q, r.dq}, {&s.k, r.dk}, {&s.v, r.dv}, {&s.mask, r.dmask}};
    for (const auto& [value, gradient] : pairs) {
      for (std::int64_t i = 0; i < value->numel(); ++i) {
        double& x = value->mutable_data<double>()[i];
        const double kept = x, step = 1e-5;
        x = kept + step;
        const double up = loss();
        x = kept - step;
        const double down = loss();
        x = kept;
        if (std::isfinite(kept)) CHECK(gradient.at(i) == doctest::Approx((up - down) / (2 * step)).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("the same bits for any number of threads") {
  for (const int broadcast : {0, 1, 2, 3}) {
    const Setup s = make_setup({.batch = 3,
                                .heads = 4,
                                .queries = 70,
                                .keys = 75,
                                .dim = 9,
                                .mask = MaskKind::add,
                                .broadcast = broadcast,
                                .causal = true,
                                .dropout = 0.1});
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      set_num_threads(1);
      const Results one = run_kernels(s, dtype);
      for (const int threads : {2, 3, 7}) {
        set_num_threads(threads);
        CHECK(same_bits(run_kernels(s, dtype), one));
      }
    }
    set_num_threads(0);
  }
}

TEST_CASE("gradients that nobody wants change nothing") {
  const Setup s = make_setup({.queries = 20, .keys = 20, .mask = MaskKind::add});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Results all = run_kernels(s, dtype);
    for (int wanted = 0; wanted < 16; ++wanted) {
      Results r = make_results(s, dtype, false);
      Tensor* const got[] = {&r.dq, &r.dk, &r.dv, &r.dmask};
      const Tensor* const expected[] = {&all.dq, &all.dk, &all.dv, &all.dmask};
      for (int i = 0; i < 4; ++i)
        if (!(wanted >> i & 1)) *got[i] = Tensor();
      run_kernels(s, r, false);
      for (int i = 0; i < 4; ++i)
        if (*got[i]) CHECK(tapestry::same_bits(*got[i], *expected[i]));
    }
  }
}

TEST_CASE("a float mask beside 16-bit tensors may be f32, and its gradient is") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Setup s = rounded(make_setup({.queries = 20, .keys = 20, .mask = MaskKind::add, .broadcast = 3}), dtype);
    for (const bool add : {false, true}) {
      const Results narrow = run_kernels(s, dtype, add);
      Results wide = make_results(s, dtype, DType::f32, add);
      if (add) wide.dmask = wide.dmask.to(dtype).to(DType::f32);
      run_kernels(s, DType::f32, wide, add);
      CHECK(tapestry::same_bits(wide.dmask.to(dtype), narrow.dmask));
      wide.dmask = narrow.dmask;
      CHECK(same_bits(wide, narrow));
    }
  }
  const Setup s = make_setup({.mask = MaskKind::add});
  Results r = make_results(s, DType::f32, DType::bf16, false);
  CHECK_THROWS_AS(run_kernels(s, DType::bf16, r, false), Error);
}

TEST_CASE("empty problems") {
  check_against_reference({.queries = 0, .keys = 3});
  check_against_reference({.queries = 3, .keys = 0, .causal = true});
  check_against_reference({.batch = 0, .mask = MaskKind::add, .broadcast = 1});
}

TEST_CASE("A01 fully masked row") {
  Setup s = plain_setup(1, 1, 1, 2, 2, 1);
  s.q = tensor({1, 1}, {1, 2, 1, 1}, DType::f64);
  s.k = tensor({1, 2}, {1, 2, 1, 1}, DType::f64);
  s.v = tensor({10, 20}, {1, 2, 1, 1}, DType::f64);
  const auto check = [&] {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const Results r = run_kernels(s, dtype);
      CHECK(r.out.at(0) == 10);
      CHECK(r.out.at(1) == 0);
      CHECK(r.lse.at(1) == -kInf);
      for (int i = 0; i < 2; ++i) {
        CHECK(r.dq.at(i) == 0);
        CHECK(r.dk.at(i) == 0);
        CHECK(r.dv.at(i) == 1 - i);
      }
    }
  };
  set_mask(s, keep_mask({1, 0, 0, 0}, {1, 1, 2, 2}));
  check();
  set_mask(s, tensor({0, -kInf, -kInf, -kInf}, {1, 1, 2, 2}, DType::f64));
  check();
  for (const DType dtype : {DType::f64, DType::f32}) {  // a finite constant: uniform, never NaN
    set_mask(s, full({1, 1, 2, 2}, -std::numeric_limits<float>::max(), DType::f64));
    const Results r = run_kernels(s, dtype);
    CHECK(difference(r.out, full({1, 2, 1, 1}, 15, dtype)) < (dtype == DType::f32 ? 1e-6 : 1));
    for (const Tensor& t : {r.out, r.dq, r.dk, r.dv, r.dmask})
      for (int i = 0; i < 2; ++i) CHECK(std::isfinite(t.at(i)));
  }
}

TEST_CASE("A02 NaN sitting in a masked-out key or value") {
  Setup two = values_only({10, kNaN});
  set_mask(two, keep_mask({1, 0}, {1, 1, 1, 2}));
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) CHECK(run_kernels(two, dtype).out.at(0) == 10);

  // Junk in key 3 and value 3, hidden in each of the three ways, and in a query and dout row that see nothing.
  for (const double junk : {kNaN, kInf, -kInf, 3e38}) {
    for (int way = 0; way < 4; ++way) {
      Setup s = make_setup({.batch = 1, .heads = 2, .kv_heads = 1, .queries = 4, .keys = 4, .dim = 5});
      Tensor mask = full({1, 1, 4, 4}, 0, DType::f64), keep = full({1, 1, 4, 4}, 1, DType::u8);
      for (std::int64_t i = 0; i < 16; ++i) {
        if (i % 4 != 3 && i / 4 != 3) continue;
        mask.mutable_data<double>()[i] = -kInf;
        keep.mutable_data<std::uint8_t>()[i] = 0;
      }
      if (way == 0) set_mask(s, keep);
      if (way == 1) set_mask(s, mask);
      if (way == 2) s.problem.options.key_lengths = from_values<std::int32_t>({3}, {1});
      if (way == 3) s.problem.options.causal = true;
      const Results clean = reference(s);
      for (std::int64_t d = 0; d < 5; ++d) {
        s.k.mutable_data<double>()[3 * 5 + d] = s.v.mutable_data<double>()[3 * 5 + d] = junk;
        if (way > 1) continue;
        s.q.mutable_data<double>()[3 * 10 + d] = s.dout.mutable_data<double>()[3 * 10 + d] = junk;
      }
      const std::int64_t seeing = way == 2 ? 4 : 3;  // queries that must not notice
      for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
        const double bound = dtype == DType::bf16 ? 5e-2 : dtype == DType::f16 ? 5e-3 : 1e-4;
        const Results r = run_kernels(s, dtype);
        for (std::int64_t i = 0; i < seeing * 10; ++i) {
          CHECK(std::abs(r.out.at(i) - clean.out.at(i)) < bound * (1 + std::abs(clean.out.at(i))));
          CHECK(std::abs(r.dq.at(i) - clean.dq.at(i)) < bound * (1 + std::abs(clean.dq.at(i))));
        }
        if (way == 3) continue;  // the last query sees the junk there
        CHECK(difference(r.dk, clean.dk) < bound);
        CHECK(difference(r.dv, clean.dv) < bound);
        CHECK(difference(r.dmask, clean.dmask) < bound);
      }
    }
  }
}

TEST_CASE("NaN at a visible position propagates, to its own rows only") {
  Setup s = make_setup({.batch = 1, .heads = 1, .kv_heads = 1, .queries = 20, .keys = 20, .causal = true});
  for (Tensor* t : {&s.k, &s.v}) {
    const double kept = t->at(10 * 4);
    t->mutable_data<double>()[10 * 4] = kNaN;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const Results r = run_kernels(s, dtype);
      for (std::int64_t i = 0; i < 20; ++i) CHECK(std::isnan(r.out.at(i * 4)) == (i >= 10));
      for (std::int64_t i = 0; i < 20; ++i) CHECK(std::isnan(r.dq.at(i * 4)) == (i >= 10));
      CHECK(std::isnan(r.dk.at(0)));
    }
    t->mutable_data<double>()[10 * 4] = kept;
  }
}

TEST_CASE("A03 causal alignment when query and key lengths differ") {
  Setup s = values_only({1, 2, 3});
  s.problem.options.causal = true;
  CHECK(run_kernels(s, DType::f32).out.at(0) == doctest::Approx(2));
  Setup one = plain_setup(1, 1, 1, 3, 1, 1);
  one.v = tensor({7}, {1, 1, 1, 1}, DType::f64);
  one.problem.options.causal = true;
  const Results r = run_kernels(one, DType::f32);
  CHECK(r.out.to_vector<float>() == std::vector<float>{0, 0, 7});
  CHECK(r.dv.at(0) == 1);
}

TEST_CASE("A04 a window of two keys, as a mask") {
  for (const int window : {2, 5}) {
    Setup s = plain_setup(1, 1, 1, 5, 5, 1);
    s.v = tensor({1, 2, 3, 4, 5}, {1, 5, 1, 1}, DType::f64);
    s.problem.options.causal = true;
    std::vector<std::uint8_t> keep(25);
    for (int i = 0; i < 25; ++i) keep[static_cast<std::size_t>(i)] = i % 5 > i / 5 - window;
    set_mask(s, keep_mask(keep, {1, 1, 5, 5}));
    const Tensor expected = window == 2 ? tensor({1, 1.5, 2.5, 3.5, 4.5}) : tensor({1, 1.5, 2, 2.5, 3});
    CHECK(difference(run_kernels(s, DType::f32).out.reshape({5}), expected) < 1e-6);
  }
}

TEST_CASE("A05 mask polarity, and 0/1 float masks") {
  Setup s = values_only({1, 2});
  set_mask(s, keep_mask({1, 0}, {1, 1, 1, 2}));
  CHECK(run_kernels(s, DType::f32).out.at(0) == 1);
  set_mask(s, tensor({0, -kInf}, {1, 1, 1, 2}, DType::f64));
  CHECK(run_kernels(s, DType::f32).out.at(0) == 1);
  set_mask(s, tensor({1, 0}, {1, 1, 1, 2}, DType::f64));
  CHECK(run_kernels(s, DType::f32).out.at(0) == doctest::Approx(1.26894));
}

TEST_CASE("A06 head merge without transpose; scale by the head size") {
  Setup s = plain_setup(1, 2, 2, 2, 2, 2);
  s.v = tensor({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 2, 2}, DType::f64);
  set_mask(s, keep_mask({1, 0, 0, 1}, {1, 1, 2, 2}));
  CHECK(run_kernels(s, DType::f32).out.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});

  Setup weights = plain_setup(1, 2, 2, 1, 2, 4);
  weights.q.fill(1);
  for (std::int64_t i = 0; i < 8; ++i) weights.k.mutable_data<double>()[i] = weights.v.mutable_data<double>()[i] = 1;
  weights.problem.options.scale = 1 / std::sqrt(4.0);
  CHECK(run_kernels(weights, DType::f32).out.at(0) == doctest::Approx(0.88080));
}

TEST_CASE("A07 GQA head repetition order") {
  Setup s = plain_setup(1, 4, 2, 1, 1, 1);
  s.v = tensor({1, 2}, {1, 1, 2, 1}, DType::f64);
  s.dout = tensor({1, 10, 100, 1000}, {1, 1, 4, 1}, DType::f64);
  const Results r = run_kernels(s, DType::f32);
  CHECK(r.out.to_vector<float>() == std::vector<float>{1, 1, 2, 2});
  CHECK(r.dv.to_vector<float>() == std::vector<float>{11, 1100});
  Setup odd = plain_setup(1, 3, 2, 1, 1, 1);
  CHECK_THROWS_AS(run_kernels(odd, DType::f32), Error);
}

TEST_CASE("A08 fp16 scores overflow, and mask constants fp16 cannot hold") {
  Setup s = plain_setup(1, 1, 1, 2, 2, 64);
  s.problem.options.scale = 0.125;
  s.q.fill(40);  // products of 102400: more than f16 holds
  s.k.fill(40);
  for (std::int64_t i = 0; i < 128; ++i) s.v.mutable_data<double>()[i] = i < 64 ? 2 : 4;
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    CAPTURE(dtype);
    s.problem.options.causal = false;
    const Results r = run_kernels(s, dtype);
    for (std::int64_t i = 0; i < 128; ++i) CHECK(r.out.at(i) == 3);
    s.problem.options.causal = true;
    const Results causal = run_kernels(s, dtype);
    for (std::int64_t i = 0; i < 128; ++i) {
      CHECK(causal.out.at(i) == (i < 64 ? 2 : 3));
      for (const Tensor& t : {causal.dq, causal.dk, causal.dv}) CHECK(std::isfinite(t.at(i)));
    }
    s.problem.options.causal = false;  // the triangle as an f32 mask of -1e9, beyond f16
    Setup masked = s;
    set_mask(masked, tensor({0, -1e9, 0, 0}, {1, 1, 2, 2}, DType::f64));
    Results m = make_results(masked, dtype, DType::f32, false);
    run_kernels(masked, DType::f32, m, false);
    for (std::int64_t i = 0; i < 128; ++i) CHECK(m.out.at(i) == (i < 64 ? 2 : 3));
  }
}

TEST_CASE("A10 dropout: zero leaves every bit, one gives zeros, another key another mask") {
  Options o{.queries = 20, .keys = 20};
  const Setup plain = make_setup(o);
  Setup zero = plain;
  zero.problem.options.dropout_key = {99, 99};
  CHECK(same_bits(run_kernels(zero, DType::f32), run_kernels(plain, DType::f32)));
  o.dropout = 0.9;
  Setup dropped = make_setup(o);
  const Results first = run_kernels(dropped, DType::f32);
  CHECK(same_bits(run_kernels(dropped, DType::f32), first));
  dropped.problem.options.dropout_key.stream += 1;
  CHECK_FALSE(tapestry::same_bits(run_kernels(dropped, DType::f32).out, first.out));
  dropped.problem.options.dropout = 1;
  const Results none = run_kernels(dropped, DType::f32);
  for (const Tensor& t : {none.out, none.dq, none.dk, none.dv}) CHECK(tapestry::same_bits(t, zeros_like(t)));
}

}  // namespace
}  // namespace tapestry::attention_test
