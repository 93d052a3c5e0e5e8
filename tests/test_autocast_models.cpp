// Models under Autocast: layers, sampling with a key-value cache, and training in bf16 and f16 as good as in f32.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <thread>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "layers/batchnorm.h"
#include "layers/models/generate.h"
#include "layers/models/gpt.h"
#include "layers/recurrent.h"
#include "optim/grad_scaler.h"
#include "optim/optimizers.h"
#include "tests/compare.h"
#include "tests/error_message.h"

using namespace tapestry;

namespace {

GptConfig tiny() { return {.vocabulary = 16, .context = 16, .layers = 2, .heads = 2, .width = 32}; }

Tensor columns(const Tensor& t, std::int64_t begin, std::int64_t end) { return slice(t, 1, begin, end).value(); }

// Where the model's weight copies lie, and how often they were written.
std::vector<std::pair<const std::byte*, std::uint32_t>> copies(Gpt& model, DType dtype) {
  std::vector<std::pair<const std::byte*, std::uint32_t>> all;
  for (const NamedParameter& p : parameters(model)) {
    if (p.parameter->shape().rank() < 2) continue;
    const Tensor copy = Var(*p.parameter).read_as(dtype).value();
    all.emplace_back(copy.raw_data(), copy.storage().version());
  }
  return all;
}

// Token t + 1 follows from token t, but for one in five, which is any: there is something to learn, and a rest.
Tensor sentences(std::int64_t batch, std::int64_t length, std::uint64_t seed) {
  Tensor ids = empty({batch, length}, DType::i32);
  std::int32_t* id = ids.mutable_data<std::int32_t>();
  const RandomKey key{seed, 0};
  for (std::int64_t i = 0; i < batch * length; ++i) {
    const bool any = i % length == 0 || key.below(2 * i, 5) == 0;
    id[i] = any ? static_cast<std::int32_t>(key.below(2 * i + 1, 16)) : (id[i - 1] * 5 + 3) % 16;
  }
  return ids;
}

// The mean loss over the last 50 of 500 steps.
double trained_loss(DType dtype) {
  Gpt model(tiny(), 3);
  AdamW optimizer(parameters(model));
  GradScaler scaler({.growth_interval = 50, .enabled = dtype == DType::f16});
  double total = 0;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const Tensor text = sentences(8, 17, 100 + i);
    Tape tape;
    const Var loss = [&] {
      const Autocast scope(dtype);
      return model.loss(columns(text, 0, 16), columns(text, 1, 17)).loss;
    }();
    CHECK(loss.dtype() == DType::f32);
    scaler.backward(loss);
    const StepReport report = optimizer.step({.lr = 3e-3, .scaler = &scaler});
    REQUIRE((dtype == DType::f16 || !report.skipped));
    if (i >= 450) total += loss.item() / 50;
  }
  CHECK(optimizer.skipped_steps() < 20);
  return total;
}

}  // namespace

TEST_CASE("GPT under Autocast: low logits, fp32 loss, residual stream and gradients, near those of f32") {
  for (const DType low : {DType::bf16, DType::f16}) {
    for (const bool tied : {true, false}) {
      GptConfig config = tiny();
      config.tied_head = tied;
      Gpt model(config, 1);
      const Tensor tokens = random_ids({2, 16}, 16, 1), targets = random_ids({2, 16}, 16, 2);
      const auto gradients = [&](DType dtype) {
        zero_grad(model);
        Tape tape;
        const Autocast scope(dtype);
        CHECK(model(tokens).dtype() == dtype);
        const CrossEntropy result = model.loss(tokens, targets);
        CHECK(result.loss.dtype() == DType::f32);
        tape.backward(result.loss, 1024);
        std::vector<Tensor> all{result.loss.value()};
        for (const NamedParameter& p : parameters(model)) all.push_back(p.parameter->grad().clone());
        return all;
      };
      const std::vector<Tensor> plain = gradients(DType::f32), mixed = gradients(low);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        CAPTURE(i);
        CHECK(mixed[i].dtype() == DType::f32);
        CHECK(relative_error(mixed[i], plain[i]) < (low == DType::bf16 ? 0.05 : 0.01));
      }
    }
  }
}

TEST_CASE("sampling under Autocast: a cache of its type, the logits of a plain forward, each weight converted once") {
  Gpt model(tiny(), 2);
  model.eval();
  const Tensor tokens = random_ids({2, 12}, 16, 3);
  std::vector<std::pair<const std::byte*, std::uint32_t>> first;
  Gpt::Cache f32_cache = model.make_cache(2);
  for (int call = 0; call < 3; ++call) {
    const Autocast scope(DType::bf16);
    Gpt::Cache cache = model.make_cache(2);
    CHECK(cache.blocks[0].keys.dtype() == DType::bf16);
    model.extend(columns(tokens, 0, 7), cache);
    model.extend(columns(tokens, 7, 11), cache);
    const Tensor last = model.extend(columns(tokens, 11, 12), cache);
    CHECK(last.dtype() == DType::bf16);
    CHECK(relative_error(last, columns(model(tokens).value(), 11, 12).reshape({2, 16})) < 0.02);
    if (call == 0) first = copies(model, DType::bf16);
    check_error([&] { model.extend(columns(tokens, 0, 3), f32_cache); }, {"attention", "f32", "bf16", "Autocast"});
  }
  CHECK(copies(model, DType::bf16) == first);
  const auto text = [&](DType dtype) {
    const Autocast scope(dtype);
    std::vector<std::int32_t> result;
    generate(model, std::array<std::int32_t, 1>{1}, 24, {.seed = 4}, [&](std::int32_t token) {
      result.push_back(token);
      return true;
    });
    return result;
  };
  CHECK(text(DType::bf16).size() == 24);
  CHECK(text(DType::bf16) == text(DType::bf16));
  CHECK(copies(model, DType::bf16) == first);
}

TEST_CASE("a Parameter may be any operand of an op under Autocast") {
  const Var x(random_normal({1, 2, 2, 2}, 1)), row(random_normal({2, 2}, 2));
  const std::pair<const char*, std::function<Var(const Var&)>> uses[] = {
      {"x of linear",
       [&](const Var& p) {
         return linear(reshape(p, {4, 2}), row);
       }},
      {"a of matmul", [&](const Var& p) { return matmul(p, row); }},
      {"q of attention", [&](const Var& p) { return attention(p, x, x); }},
      {"residual", [&](const Var& p) { return linear(x, row, {}, p); }},
      {"x of conv2d",
       [&](const Var& p) {
         return conv2d(p, x.value().reshape({1, 2, 2, 2}));
       }},
      {"x of layernorm", [&](const Var& p) { return layernorm(p, full({2}, 1), zeros({2})); }},
      {"mask of softmax", [&](const Var& p) { return softmax(x, p); }},
      {"loss", [&](const Var& p) { return mse(cast(x, DType::bf16), p); }}};
  for (const auto& [name, use] : uses) {
    CAPTURE(name);
    Parameter p(random_normal({1, 2, 2, 2}, 3));
    Tape tape;
    const Autocast scope(DType::bf16);
    tape.backward(sum(square(use(p))));
    CHECK(p.grad().dtype() == DType::f32);
    CHECK(max_abs(p.grad()) > 0);
  }
}

TEST_CASE("threads that use one weight under Autocast share its copy") {
  const Parameter w(random_normal({64, 64}, 1));
  const Var x = random_normal({3, 64}, 2);
  std::array<Tensor, 4> y, copy;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < y.size(); ++i)
    threads.emplace_back([&, i] {
      const Autocast scope(DType::bf16);
      y[i] = linear(x, w).value();
      copy[i] = Var(w).read_as(DType::bf16).value();
    });
  for (std::thread& t : threads) t.join();
  for (std::size_t i = 1; i < y.size(); ++i) {
    CHECK(same_bits(y[i], y[0]));
    CHECK(copy[i].storage() == copy[0].storage());
  }
}

TEST_CASE("statistics and recurrent state stay f32 under Autocast") {
  const Autocast scope(DType::bf16);
  BatchNorm1d norm(4);
  CHECK(norm(Var(random_normal({8, 4}, 1))).dtype() == DType::bf16);
  CHECK(norm.running_mean.dtype() == DType::f32);
  CHECK(max_abs(norm.running_mean) > 0);
  Rng rng(1);
  const GruCell gru({.in = 4, .hidden = 6}, rng);
  const LstmCell lstm({.in = 4, .hidden = 6}, rng);
  const Var x = random_normal({2, 4}, 2), state = zeros({2, 6});
  CHECK(gru(x, state).dtype() == DType::f32);
  const auto next = lstm(x, {state, state});
  CHECK(next.h.dtype() == DType::f32);
  CHECK(next.c.dtype() == DType::f32);
}

TEST_CASE("slow: a tiny GPT trained for 500 steps in bf16 and f16 ends within 2 % of the f32 loss") {
  const double reference = trained_loss(DType::f32);
  CHECK(reference < 1.6);
  CHECK(trained_loss(DType::bf16) == doctest::Approx(reference).epsilon(0.02));
  CHECK(trained_loss(DType::f16) == doctest::Approx(reference).epsilon(0.02));
  MESSAGE("f32 loss ", reference);
}
