// Mixed precision: one small GPT trained in f32, bf16 and f16 from the same seed; what Autocast changes, what it leaves
// alone, and what the loss scale of f16 is for.
#include <cmath>
#include <cstdio>

#include "tapestry.h"
using namespace tapestry;

constexpr std::int64_t kBatch = 16, kTime = 32, kSteps = 150;

// 1. A task without a data set: count up from a random number modulo 50, so every token follows from the one before it.
struct Lesson {
  Tensor tokens = empty({kBatch, kTime}, DType::i32), targets = empty({kBatch, kTime}, DType::i32);
};
Lesson counting(std::uint64_t step) {
  Lesson b;
  auto *in = b.tokens.mutable_data<std::int32_t>(), *out = b.targets.mutable_data<std::int32_t>();
  for (std::int64_t i = 0; i < kBatch * kTime; ++i) {
    const std::int64_t start = RandomKey{1, step}.below(i / kTime, 50);
    in[i] = static_cast<std::int32_t>((start + i % kTime) % 50);
    out[i] = static_cast<std::int32_t>((start + i % kTime + 1) % 50);
  }
  return b;
}

// 2. The loop is the same for every type. Autocast belongs around the forward pass only: inside it products read and
//    give the low type and sum in f32, the residual stream and the loss stay f32. Parameters, their gradients and the
//    optimizer's moments are f32 always, so an update too small for 16 bits is not lost.
double train(DType dtype, GradScaler* scaler) {
  Gpt model({.vocabulary = 50, .context = kTime, .layers = 2, .heads = 2, .width = 64}, /*seed=*/7);
  AdamW optimizer(parameters(model));
  const Schedule rate = warmup(10, cosine(3e-3, 3e-4, kSteps));
  double loss = 0;
  std::int64_t skipped = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Lesson batch = counting(static_cast<std::uint64_t>(step));
    Tape tape;
    const Var mean = [&] {
      const Autocast scope(dtype);
      return model.loss(batch.tokens, batch.targets).loss;
    }();
    // 3. With a scaler the loss is multiplied before backward; step() divides, looks for infinities, clips, and updates
    //    or skips, in that order. A skipped step halves the scale and changes nothing else.
    scaler ? scaler->backward(mean) : tape.backward(mean);
    const StepReport report = optimizer.step({.lr = rate(optimizer.steps()), .scaler = scaler, .clip_norm = 1});
    if (report.skipped) std::printf("      step %3ld skipped at scale %.0f\n", static_cast<long>(step), report.scale);
    skipped += report.skipped;
    loss = mean.item();
  }
  std::printf("%-5s loss %.4f, %ld steps skipped\n", to_text(dtype).c_str(), loss, static_cast<long>(skipped));
  return loss;
}

int main() {
  const double f32 = train(DType::f32, nullptr);
  const double bf16 = train(DType::bf16, nullptr);                 // the range of f32: needs no scale
  GradScaler scaler({.init_scale = 0x1p27, .max_scale = 0x1p27});  // far too large, to see it fall
  const double f16 = train(DType::f16, &scaler);

  // 4. What a scale is for: the smallest number of f16 is 2^-24, and a smaller gradient becomes 0 on its way.
  Parameter weight(tensor({1}));
  auto gradient_of = [&](double scale) {
    Tape tape;
    tape.backward(cast(cast(weight, DType::f16), DType::f32), 1e-8 * scale);
    const double gradient = weight.grad().item() / scale;
    weight.zero_grad();
    return gradient;
  };
  std::printf("a gradient of 1e-8 through f16: %g, with a scale of 65536: %g\n", gradient_of(1), gradient_of(65536));
  const bool close = std::abs(bf16 / f32 - 1) < 0.2 && std::abs(f16 / f32 - 1) < 0.2;
  return close && gradient_of(1) == 0 && gradient_of(65536) > 0 ? 0 : 1;
}
