// Self-attention and the blocks around it: conventions, masks, dropout, the key-value cache.
#include <doctest/doctest.h>

#include <functional>

#include "layers/block.h"
#include "layers/init.h"
#include "tests/allocation_counter.h"
#include "tests/compare.h"

using namespace tapestry;

namespace {

using Forward = std::function<Var(const Var&)>;

struct Gradients {
  Tensor y, dx;
};

// Forward and backward of sum(f(x) * w) for a fixed random w.
Gradients run(const Forward& f, const Tensor& x) {
  Tape tape;
  const Var leaf = tape.watch(x);
  const Var y = f(leaf);
  tape.backward(sum(y * Var(random_normal(y.shape(), 99, y.dtype()))));
  return {y.value(), tape.grad(leaf)};
}

std::vector<Tensor> parameter_gradients(Module& module) {
  std::vector<Tensor> grads;
  for (const NamedParameter& p : parameters(module)) grads.push_back(p.parameter->grad().clone());
  return grads;
}

// Attention written out with the plain ops; needs the [B, H, T, T] scores.
Var unfused_attention(const Attention& layer, const Var& x, const Var& added_mask) {
  const std::int64_t batch = x.shape()[0], time = x.shape()[1], heads = layer.config().heads;
  const std::int64_t inner = layer.config().inner(), size = inner / heads;
  const Var qkv = linear(x, layer.qkv.weight, *layer.qkv.bias);
  Var part[3];
  for (int i = 0; i < 3; ++i)
    part[i] = permute(reshape(slice(qkv, 2, i * inner, (i + 1) * inner), {batch, time, heads, size}), {0, 2, 1, 3});
  Var scores = matmul(part[0], part[1], false, true) / std::sqrt(static_cast<double>(size));
  if (added_mask) scores = scores + added_mask;
  const Var merged = reshape(permute(matmul(softmax(scores), part[2]), {0, 2, 1, 3}), {batch, time, inner});
  return linear(merged, layer.out.weight, *layer.out.bias);
}

// [T, T]: 0 where a query may see a key, -inf above the diagonal.
Tensor causal_mask(std::int64_t time, DType dtype) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < time; ++i)
    for (std::int64_t j = 0; j < time; ++j) values.push_back(j > i ? -std::numeric_limits<double>::infinity() : 0);
  return from_values(values, {time, time}).to(dtype);
}

void set_identity(Parameter& p) {
  std::vector<float> values(static_cast<std::size_t>(p.numel()));
  const std::int64_t in = p.shape()[0], out = p.shape()[1];
  for (std::int64_t i = 0; i < in; ++i)
    for (std::int64_t j = 0; j < out; ++j) values[static_cast<std::size_t>(i * out + j)] = i == j % in;
  p.assign(from_values(values, p.shape()));
}

Attention identity_attention(std::int64_t width, std::int64_t heads) {
  Rng rng(1);
  Attention layer({.width = width, .heads = heads, .causal = false}, rng);
  set_identity(layer.qkv.weight);
  set_identity(layer.out.weight);
  return layer;
}

}  // namespace

TEST_CASE("attention equals its unfused composition, forward and backward") {
  struct Row {
    std::int64_t batch, time, width, heads, head_dim;
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
    for (const Row r : {Row{1, 1, 4, 2, 0}, Row{2, 6, 8, 2, 0}, Row{1, 31, 10, 2, 5}, Row{3, 33, 15, 3, 5},
                        Row{2, 70, 8, 1, 0}, Row{1, 5, 6, 4, 7}}) {
      for (const bool causal : {false, true}) {
        CAPTURE(r.time);
        CAPTURE(causal);
        Rng rng(4);
        Attention layer({.width = r.width, .heads = r.heads, .head_dim = r.head_dim, .causal = causal}, rng);
        init::normal(*layer.qkv.bias, rng, 0.5);
        convert(layer, dtype);
        const Tensor x = random_normal({r.batch, r.time, r.width}, 5, dtype);
        const Var mask = causal ? Var(causal_mask(r.time, dtype)) : Var();

        zero_grad(layer);
        const Gradients expected = run([&](const Var& v) { return unfused_attention(layer, v, mask); }, x);
        const std::vector<Tensor> expected_grads = parameter_gradients(layer);
        zero_grad(layer);
        const Gradients got = run([&](const Var& v) { return layer(v); }, x);
        const std::vector<Tensor> grads = parameter_gradients(layer);

        CHECK(relative_error(got.y, expected.y) < tolerance);
        CHECK(relative_error(got.dx, expected.dx) < 4 * tolerance);
        for (std::size_t i = 0; i < grads.size(); ++i)
          CHECK(relative_error(grads[i], expected_grads[i]) < 4 * tolerance);
      }
    }
  }
}

TEST_CASE("keep masks, added masks and key lengths say the same thing") {
  Rng rng(6);
  Attention layer({.width = 8, .heads = 2, .causal = false}, rng);
  const Tensor x = random_normal({2, 5, 8}, 7);
  std::vector<std::uint8_t> keep;
  std::vector<float> added;
  const std::int64_t lengths[] = {5, 3};
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t j = 0; j < 5; ++j) {
      keep.push_back(j < lengths[b]);
      added.push_back(j < lengths[b] ? 0 : -std::numeric_limits<float>::infinity());
    }
  const Tensor by_length = layer(x, {.key_lengths = from_values<std::int32_t>({5, 3}, {2})}).value();
  const Tensor by_keep = layer(x, {.mask = from_values(keep, {2, 1, 1, 5})}).value();
  const Tensor by_added = layer(x, {.mask = from_values(added, {2, 1, 1, 5})}).value();
  CHECK(relative_error(by_keep, by_length) < 1e-6);
  CHECK(relative_error(by_added, by_length) < 1e-6);
  CHECK(relative_error(layer(x).value(), by_length) > 1e-3);
}

TEST_CASE("a padded sequence gives what the short one gives, whatever the padding holds") {
  Rng rng(8);
  for (const NormPlacement placement : {NormPlacement::pre, NormPlacement::post}) {
    Block block({.width = 8, .heads = 2, .norm = placement, .causal = false}, rng);
    const Tensor short_x = random_normal({1, 4, 8}, 9);
    const Tensor expected = block(short_x).value();
    for (const double junk : {0.0, 1e4, std::numeric_limits<double>::quiet_NaN()}) {
      CAPTURE(junk);
      Tensor x = full({1, 7, 8}, junk);
      x.reshape({7, 8}).rows(0, 4).copy_from(short_x.reshape({4, 8}));
      const Tensor y = block(x, {.key_lengths = from_values<std::int32_t>({4}, {1})}).value();
      CHECK(relative_error(y.reshape({7, 8}).rows(0, 4), expected.reshape({4, 8})) < 1e-6);
    }
  }
}

TEST_CASE("a block is its written-out composition, Pre-LN and Post-LN") {
  Rng rng(10);
  const Tensor x = random_normal({2, 6, 8}, 11, DType::f64);
  for (const Activation activation : {Activation::gelu_tanh, Activation::gelu, Activation::relu, Activation::silu}) {
    Block pre({.width = 8, .heads = 2, .hidden = 20, .activation = activation}, rng);
    Block post({.width = 8, .heads = 2, .hidden = 20, .norm = NormPlacement::post, .activation = activation}, rng);
    convert(pre, DType::f64);
    convert(post, DType::f64);
    const Var mask = causal_mask(6, DType::f64);
    const auto norm = [](const LayerNorm& n, const Var& v) { return layernorm(v, n.weight, n.bias, 1e-5); };
    const auto mlp = [&](const Mlp& m, const Var& v) {
      const Var h = linear(v, m.up.weight, *m.up.bias);
      const Var a = activation == Activation::relu   ? relu(h)
                    : activation == Activation::gelu ? gelu(h)
                    : activation == Activation::silu ? silu(h)
                                                     : gelu_tanh(h);
      return linear(a, m.down.weight, *m.down.bias);
    };
    const Gradients expected_pre = run(
        [&](const Var& v) {
          const Var h = v + unfused_attention(pre.attention, norm(pre.norm1, v), mask);
          return h + mlp(pre.mlp, norm(pre.norm2, h));
        },
        x);
    const Gradients expected_post = run(
        [&](const Var& v) {
          const Var h = norm(post.norm1, v + unfused_attention(post.attention, v, mask));
          return norm(post.norm2, h + mlp(post.mlp, h));
        },
        x);
    const Gradients got_pre = run([&](const Var& v) { return pre(v); }, x);
    const Gradients got_post = run([&](const Var& v) { return post(v); }, x);
    CHECK(relative_error(got_pre.y, expected_pre.y) < 1e-12);
    CHECK(relative_error(got_pre.dx, expected_pre.dx) < 1e-11);
    CHECK(relative_error(got_post.y, expected_post.y) < 1e-12);
    CHECK(relative_error(got_post.dx, expected_post.dx) < 1e-11);
  }
}

TEST_CASE("A06 Head merge without transpose; scale by d_model") {
  const Attention merge = identity_attention(4, 2);
  const Tensor x = tensor({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 4});
  const Tensor diagonal = from_values<std::uint8_t>({1, 0, 0, 1}, {2, 2});
  CHECK(relative_error(merge(x, {.mask = diagonal}).value(), x) < 1e-6);

  // Token 0 has q = k = v = ones, token 1 zeros: the output of token 0 is the weight of key 0, per channel.
  const Attention scaled = identity_attention(8, 2);
  Tensor ones = zeros({1, 2, 8});
  ones.reshape({2, 8}).rows(0, 1).fill(1);
  const Tensor y = scaled(ones).value();
  for (int c = 0; c < 8; ++c) CHECK(y.at(c) == doctest::Approx(0.8807971).epsilon(1e-6));
}

TEST_CASE("A07 GQA head repetition order") {
  Tape tape;
  const Var q = random_normal({1, 1, 4, 1}, 1), k = random_normal({1, 1, 2, 1}, 2);
  const Var v = tape.watch(tensor({1, 2}, {1, 1, 2, 1}));
  const Var out = attention(q, k, v);
  CHECK(out.value().to_vector<float>() == std::vector<float>{1, 1, 2, 2});
  tape.backward(sum(out * Var(tensor({1, 10, 100, 1000}, {1, 1, 4, 1}))));
  CHECK(tape.grad(v).to_vector<float>() == std::vector<float>{11, 1100});
  CHECK_THROWS_AS(attention(random_normal({1, 1, 3, 1}, 1), k, v.detach()), Error);
}

TEST_CASE("16-bit attention as an op: packed and separate, A08, no heap allocation") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    CAPTURE(dtype);
    const Tensor q = random_normal({2, 50, 3, 16}, 1).to(dtype), k = random_normal({2, 50, 3, 16}, 2).to(dtype),
                 v = random_normal({2, 50, 3, 16}, 3).to(dtype), dout = random_normal({2, 50, 48}, 4).to(dtype);
    const Var parts[] = {q.reshape({2, 50, 48}), k.reshape({2, 50, 48}), v.reshape({2, 50, 48})};
    const Tensor packed = concat(parts, 2).value();
    Tensor out, dqkv;
    std::int64_t before = 0;
    for (int step = 0; step < 4; ++step) {
      if (step == 3) before = heap_allocations;
      Tape tape;
      const Var x = tape.watch(packed), y = attention_packed(x, 3, {.causal = true});
      tape.backward(y, dout);
      out = y.value();
      dqkv = tape.grad(x);
    }
    CHECK(heap_allocations == before);
    Tape tape;
    const Var leaf[] = {tape.watch(q), tape.watch(k), tape.watch(v)};
    const Var y = attention(leaf[0], leaf[1], leaf[2], {.causal = true});
    tape.backward(y, dout.reshape({2, 50, 3, 16}));
    CHECK(same_bits(y.value().reshape({2, 50, 48}), out));
    const Var grads[] = {tape.grad(leaf[0]).reshape({2, 50, 48}), tape.grad(leaf[1]).reshape({2, 50, 48}),
                         tape.grad(leaf[2]).reshape({2, 50, 48})};
    CHECK(same_bits(concat(grads, 2).value(), dqkv));
  }
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const Tensor forty = full({1, 2, 1, 64}, 40, dtype);
    Tensor v = full({1, 2, 1, 64}, 2, dtype);
    v.reshape({2, 64}).rows(1, 1).fill(4);
    for (const bool causal : {false, true}) {
      const Tensor y = attention(forty, forty, v, {.causal = causal}).value();
      for (std::int64_t i = 0; i < 128; ++i) CHECK(y.at(i) == (causal && i < 64 ? 2 : 3));
    }
  }
}

TEST_CASE("A10 Dropout alive in evaluation through a functional call") {
  Rng rng_a(12), rng_b(12);
  Attention dropping({.width = 8, .heads = 2, .dropout = 0.9}, rng_a), plain({.width = 8, .heads = 2}, rng_b);
  const Tensor x = random_normal({2, 9, 8}, 13);
  const Gradients expected = run([&](const Var& v) { return plain(v); }, x);

  const Gradients before = run([&](const Var& v) { return dropping(v); }, x);
  CHECK_FALSE(same_bits(before.y, expected.y));
  dropping.eval();
  for (int i = 0; i < 2; ++i) {
    const Gradients got = run([&](const Var& v) { return dropping(v); }, x);
    CHECK(same_bits(got.y, expected.y));
    CHECK(same_bits(got.dx, expected.dx));
  }
  dropping.train();
  const Gradients first = run([&](const Var& v) { return dropping(v); }, x);
  const Gradients second = run([&](const Var& v) { return dropping(v); }, x);
  CHECK_FALSE(same_bits(first.y, second.y));
  CHECK(dropping.dropout.p() == 0.9);
}

TEST_CASE("attention drops its weights as well as its result") {
  // All values are equal, so the kept weights of a row show in its output: with one token, all or nothing per head.
  Attention layer = identity_attention(2, 2);
  Rng rng(1);
  Attention dropping({.width = 2, .heads = 2, .causal = false, .dropout = 0.5}, rng);
  dropping.qkv.weight.assign(layer.qkv.weight.value());
  dropping.out.weight.assign(layer.out.weight.value());
  manual_seed(5);
  const Tensor y = dropping(full({4000, 1, 2}, 1)).value();
  int kept = 0;
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    CHECK((y.at(i) == 0 || y.at(i) == doctest::Approx(4)));
    kept += y.at(i) != 0;
  }
  CHECK(kept / 8000.0 == doctest::Approx(0.25).epsilon(0.08));  // 4 sigma
}

TEST_CASE("a cache gives what the whole sequence gives, for every split") {
  Rng rng(17);
  Attention layer({.width = 10, .heads = 2, .dropout = 0.1}, rng);
  layer.eval();
  const std::int64_t time = 7;
  const Tensor x = random_normal({2, time, 10}, 18);
  const Tensor expected = layer(x).value();
  for (std::int64_t at = 1; at < time; ++at) {
    KeyValueCache cache{zeros({2, 9, 10}), zeros({2, 9, 10})};
    const Tensor head = layer.extend(slice(x, 1, 0, at).value(), cache);
    const Tensor tail = layer.extend(slice(x, 1, at, time).value(), cache);
    CHECK(cache.length == time);
    const Var parts[] = {head, tail};
    CHECK(relative_error(concat(parts, 1).value(), expected) < 1e-5);
  }
}

TEST_CASE("a cache of 16 bits gives what the whole sequence gives, within rounding") {
  Rng rng(22);
  Attention layer({.width = 10, .heads = 2}, rng);
  const Tensor x32 = random_normal({2, 7, 10}, 23);
  const Tensor exact = layer(x32).value();
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const double rounding = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    Attention low({.width = 10, .heads = 2}, rng);
    low.qkv.weight.assign(layer.qkv.weight.value());
    low.out.weight.assign(layer.out.weight.value());
    convert(low, dtype);
    const Tensor x = x32.to(dtype), expected = low(x).value();
    CHECK(expected.dtype() == dtype);
    CHECK(relative_error(expected.to(DType::f32), exact) < 6 * rounding);
    for (std::int64_t at = 1; at < 7; ++at) {
      KeyValueCache cache{zeros({2, 9, 10}, dtype), zeros({2, 9, 10}, dtype)};
      const Tensor head = low.extend(slice(x, 1, 0, at).value(), cache);
      const Tensor tail = low.extend(slice(x, 1, at, 7).value(), cache);
      const Var parts[] = {head, tail};
      CHECK(relative_error(concat(parts, 1).value().to(DType::f32), expected.to(DType::f32)) < 2 * rounding);
    }
  }
}

TEST_CASE("what extend refuses") {
  Rng rng(19);
  Attention layer({.width = 4, .heads = 2, .dropout = 0.5}, rng),
      both_ways({.width = 4, .heads = 2, .causal = false}, rng);
  const Tensor x = random_normal({1, 2, 4}, 20);
  KeyValueCache cache{zeros({1, 3, 4}), zeros({1, 3, 4})}, none, other{zeros({2, 3, 4}), zeros({2, 3, 4})};
  KeyValueCache of_doubles{zeros({1, 3, 4}, DType::f64), zeros({1, 3, 4}, DType::f64)};
  CHECK_THROWS_WITH_AS(layer.extend(x, cache),
                       "attention: extend is for inference, but dropout is on; call eval() first", Error);
  layer.eval();
  CHECK_THROWS_AS(both_ways.extend(x, cache), Error);
  CHECK_THROWS_AS(layer.extend(x, none), Error);
  CHECK_THROWS_AS(layer.extend(x, other), Error);
  CHECK_THROWS_AS(layer.extend(x, of_doubles), Error);
  CHECK_THROWS_AS(layer.extend(random_normal({2, 4}, 1), cache), Error);
  layer.extend(x, cache);
  CHECK_THROWS_WITH_AS(
      layer.extend(x, cache),
      "attention: the cache holds 2 of 3 tokens and has no room for 2 more; make a larger one or start "
      "afresh",
      Error);
  CHECK(cache.length == 2);
  Tape tape;
  layer.extend(random_normal({1, 1, 4}, 21), cache);
  CHECK(tape.size() == 0);
}
