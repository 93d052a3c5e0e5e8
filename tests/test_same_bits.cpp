// The same weights, bit for bit, for any number of threads: models of the benchmarks' three forms at a reduced size.
#include <doctest/doctest.h>

#include "core/parallel.h"
#include "layers/models/gpt.h"
#include "optim/adam.h"

using namespace tapestry;

namespace {

struct Size {
  const char* name;
  std::int64_t layers, heads, width, time, batch, vocabulary;
};

// Of all weights after 100 steps of training with dropout.
std::string trained_weights(const Size& s, int threads) {
  set_num_threads(threads);
  Gpt model({.vocabulary = s.vocabulary,
             .context = s.time,
             .layers = s.layers,
             .heads = s.heads,
             .width = s.width,
             .dropout = 0.1},
            1);
  AdamW optimizer(parameters(model), {.weight_decay = 0.1});
  Tensor inputs = empty({s.batch, s.time}, DType::i32), targets = empty_like(inputs);
  for (std::int64_t step = 0; step < 100; ++step) {
    const RandomKey key{3, static_cast<std::uint64_t>(step)};
    for (std::int64_t i = 0; i < inputs.numel(); ++i) {
      inputs.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>(key.below(i, s.vocabulary));
      targets.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>(key.below(i + 1, s.vocabulary));
    }
    const RandomScope random(5, static_cast<std::uint64_t>(step));
    Tape tape;
    tape.backward(model.loss(inputs, targets).loss);
    optimizer.step({.lr = 1e-3, .clip_norm = 1});
  }
  std::string bytes;
  for (const NamedParameter& p : parameters(model))
    bytes.append(reinterpret_cast<const char*>(p.parameter->value().raw_data()),
                 static_cast<std::size_t>(p.parameter->value().bytes()));
  return bytes;
}

}  // namespace

TEST_CASE("R03 the weights after 100 steps are the same for 1, 2, 3, 4 and 7 threads") {
  for (const Size& s :
       {Size{"tiny", 2, 4, 64, 32, 4, 65}, Size{"c384", 2, 6, 96, 64, 2, 65}, Size{"g124", 2, 12, 96, 16, 4, 1031}}) {
    CAPTURE(s.name);
    const std::string alone = trained_weights(s, 1);
    for (int threads : {2, 3, 4, 7}) {
      CAPTURE(threads);
      CHECK(trained_weights(s, threads) == alone);
    }
  }
  set_num_threads(0);
}
