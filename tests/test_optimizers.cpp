// Every optimizer: PyTorch's traces, resuming, bits for any thread count, allocations, training, wrong options; and
// Ema. What they share (norm, clipping, skipping) is in test_optimizer.cpp, the papers' formulas in
// test_optimizer_formulas.cpp.
#include "optim/optimizers.h"

#include <cmath>

#include "autograd/ops.h"
#include "core/io/hdf5_file.h"
#include "core/parallel.h"
#include "optim/ema.h"
#include "optim/training_state.h"
#include "tests/allocation_counter.h"
#include "tests/error_message.h"
#include "tests/fault_injection.h"
#include "tests/optimizer_kinds.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

struct Kind {
  std::string name;
  double rate;
  Make make;
};

// The cases of tests/oracle/make_optimizer_reference.py.
std::vector<Kind> traced() {
  return {
      {"sgd", 0.05, make<Sgd>(SgdOptions{})},
      {"sgd_momentum", 0.02, make<Sgd>(SgdOptions{.momentum = 0.9, .weight_decay = 0.1})},
      {"sgd_nesterov", 0.02, make<Sgd>(SgdOptions{.momentum = 0.8, .nesterov = true, .weight_decay = 0.05})},
      {"adam", 0.02, make<Adam>(AdamOptions{.beta2 = 0.99})},
      {"adam_decay", 0.02, make<Adam>(AdamOptions{.beta1 = 0.8, .eps = 1e-6, .weight_decay = 0.2})},
      {"adamw", 0.02, make<AdamW>(AdamWOptions{.beta2 = 0.95, .weight_decay = 0.3})},
      {"rmsprop", 0.01, make<RmsProp>(RmsPropOptions{})},
      {"rmsprop_momentum", 0.01, make<RmsProp>(RmsPropOptions{.alpha = 0.9, .momentum = 0.9, .weight_decay = 0.1})},
      {"rmsprop_centered", 0.01, make<RmsProp>(RmsPropOptions{.alpha = 0.95, .eps = 1e-3, .centered = true})},
      {"rmsprop_both", 0.005,
       make<RmsProp>(RmsPropOptions{.alpha = 0.9, .eps = 1e-3, .momentum = 0.8, .centered = true})},
      {"adagrad", 0.1, make<Adagrad>(AdagradOptions{})},
      {"adagrad_initial", 0.1, make<Adagrad>(AdagradOptions{.eps = 1e-6, .initial_sum = 0.5, .weight_decay = 0.1})},
      {"adafactor", 0.1, make<Adafactor>(AdafactorOptions{})},
      {"adafactor_decay", 0.5,
       make<Adafactor>(AdafactorOptions{.beta2_decay = 0.7, .eps2 = 1e-2, .clip = 1.5, .weight_decay = 0.1})},
      {"muon", 0.02, make_muon({})},
      {"muon_original", 0.05,
       make_muon({.momentum = 0.9, .nesterov = false, .scale = MuonScale::original, .weight_decay = 0})},
  };
}

// One of each, for what all must do.
std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds = traced();
  kinds.push_back({"lion", 0.01, make<Lion>(LionOptions{})});
  kinds.push_back({"lamb", 0.01, make<Lamb>(LambOptions{})});
  return kinds;
}

const Hdf5Reader& reference() {
  static const Hdf5Reader reader(TAPESTRY_SOURCE_DIR "/tests/oracle/optimizer_reference.h5");
  return reader;
}

// The largest difference to the trace of `kind`, relative to 1 or to the value where that is larger.
double trace_error(const Kind& kind, DType dtype) {
  const bool muon = kind.name.starts_with("muon");
  std::vector<Parameter> list;
  std::vector<Tensor> grads;
  std::vector<std::size_t> index;
  for (std::size_t i = 0; i < 4; ++i) {
    const Tensor start = reference().read(text_of("start.p", i));
    if (muon && start.shape().rank() != 2) continue;
    list.emplace_back(start.to(dtype).clone());
    grads.push_back(reference().read(text_of("grads.p", i)).to(dtype));
    index.push_back(i);
  }
  const Tensor rates = reference().read("rates");
  const auto optimizer = kind.make(one_group(list));
  double worst = 0;
  for (std::int64_t t = 0; t < rates.numel(); ++t) {
    for (std::size_t i = 0; i < list.size(); ++i)
      if (index[i] != 1 || t % 5 != 3) set_grad(list[i], grads[i].rows(t, 1).reshape(list[i].shape()));
    optimizer->step({.lr = kind.rate * rates.at(t)});
    const std::string name = text_of(kind.name, ".", t + 1);
    if (!reference().contains(name)) continue;
    const Tensor expected = reference().read(name);
    const std::vector<double> values = values_of(list);
    REQUIRE(expected.numel() == static_cast<std::int64_t>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double right = expected.at(static_cast<std::int64_t>(i));
      worst = std::max(worst, std::abs(values[i] - right) / std::max(1.0, std::abs(right)));
    }
  }
  return worst;
}

// A net of two layers that learns a fixed function.
struct TinyNet : Module {
  TinyNet() {
    Rng rng(3);
    for (Parameter* p : {&up, &down}) fill_normal(p->mutable_value(), 0, 0.4, rng.next());
  }
  Var loss(std::int64_t i) {
    Tensor x = empty({16, 6}), y = empty({16, 2});
    fill_normal(x, 0, 1, {5, static_cast<std::uint64_t>(i % 4)});
    for (std::int64_t r = 0; r < 16; ++r)
      for (std::int64_t c = 0; c < 2; ++c)
        y.mutable_data<float>()[2 * r + c] = static_cast<float>(std::sin(x.at(6 * r + c) + x.at(6 * r + 4)));
    return mse(linear(tanh(linear(Var(x), up, bias)), down), Var(y));
  }
  double train(Optimizer& optimizer, double rate, std::int64_t from, std::int64_t to) {
    double last = 0;
    for (std::int64_t i = from; i < to; ++i) {
      Tape tape;
      const Var l = loss(i);
      last = l.value().item();
      tape.backward(l);
      optimizer.step({.lr = rate});
    }
    return last;
  }
  void visit(Visitor& v) override {
    v("up", up);
    v("bias", bias);
    v("down", down);
  }
  Parameter up{Shape{6, 24}}, bias{Shape{24}}, down{Shape{24, 2}};
};

Groups groups_of(Module& module) { return {{.parameters = parameters(module)}}; }

}  // namespace

TEST_CASE("O01 O04 PyTorch's traces over 50 steps, with a changing rate and missing gradients") {
  for (const Kind& kind : traced()) {
    CAPTURE(kind.name);
    CHECK(trace_error(kind, DType::f64) < 1e-10);
    CHECK(trace_error(kind, DType::f32) < 1e-6);
  }
}

TEST_CASE("every optimizer trains a net, and resumes in the middle byte for byte") {
  const TemporaryFolder folder;
  for (const Kind& kind : all_kinds()) {
    CAPTURE(kind.name);
    TinyNet net, resumed;
    const auto optimizer = kind.make(groups_of(net)), other = kind.make(groups_of(resumed));
    const double first = net.train(*optimizer, kind.rate, 0, 1);
    net.train(*optimizer, kind.rate, 1, 30);
    const std::string path = folder / text_of(kind.name, ".h5");
    save_training_state(path, net, optimizer.get(), {});
    load_training_state(path, resumed, other.get());
    const double last = net.train(*optimizer, kind.rate, 30, 60);
    CHECK(last < 0.8 * first);
    CHECK(resumed.train(*other, kind.rate, 30, 60) == last);
    CHECK(weights_hash(resumed) == weights_hash(net));
    const auto state = optimizer->state(), expected = other->state();
    for (std::size_t i = 0; i < state.size(); ++i) CHECK(same_bits(state[i].tensor, expected[i].tensor));
  }
}

TEST_CASE("every optimizer gives the same bits with 1, 2 and 3 threads, and allocates nothing after its first step") {
  for (const Kind& kind : all_kinds()) {
    CAPTURE(kind.name);
    std::vector<double> expected;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      std::vector<Parameter> list = make_parameters({{150, 391}, {17}, {50003}, {3, 40, 31}});
      const auto optimizer = kind.make(one_group(list));
      for (std::uint64_t t = 0; t < 3; ++t) {
        random_grads(list, t);
        const std::int64_t heap = heap_allocations, pool = memory_stats().system_requests;
        optimizer->step({.lr = 0.01, .clip_norm = 1});
        if (t > 0) CHECK(heap_allocations == heap);
        if (t > 0) CHECK(memory_stats().system_requests == pool);
      }
      const std::vector<double> values = values_of(list);
      if (threads == 1) expected = values;
      CHECK(values == expected);
    }
  }
  set_num_threads(0);
}

TEST_CASE("groups have their own rate and decay in every optimizer") {
  for (const Kind& kind : all_kinds()) {
    CAPTURE(kind.name);
    if (kind.name.starts_with("muon")) continue;
    std::vector<Parameter> list = make_parameters({{4, 4}, {4, 4}});
    const std::vector<double> before = values_of(list);
    const auto optimizer = kind.make({{.parameters = {{"still", &list[0]}}, .lr_scale = 0},
                                      {.parameters = {{"moving", &list[1]}}, .lr_scale = 1, .weight_decay = 0}});
    random_grads(list, 1);
    optimizer->step({.lr = 0.1});
    const std::vector<double> after = values_of(list);
    for (std::size_t i = 0; i < 32; ++i) CHECK((after[i] == before[i]) == (i < 16));
  }
}

TEST_CASE("wrong options name the optimizer and the option, and pack nothing") {
  std::vector<Parameter> list = make_parameters({{2, 2}});
  auto error = [&]<class O, class Options>(const Make&, O*, const Options& options) {
    return message_of([&] { O optimizer(one_group(list), options); });
  };
  auto refused = [&](auto options, auto* type, const char* text) {
    const std::string message = error(Make(), type, options);
    CHECK_MESSAGE(has(message, text), message);
    CHECK_FALSE(list[0].packed());
  };
  refused(SgdOptions{.momentum = kInf}, static_cast<Sgd*>(nullptr), "Sgd: momentum must be finite and at least 0");
  refused(SgdOptions{.weight_decay = -1}, static_cast<Sgd*>(nullptr), "Sgd: weight_decay must be");
  refused(AdamWOptions{.beta1 = 1}, static_cast<AdamW*>(nullptr), "AdamW: beta1 must be in [0, 1), not 1");
  refused(AdamOptions{.beta2 = kNan}, static_cast<Adam*>(nullptr), "Adam: beta2 must be in [0, 1), not nan");
  refused(AdamOptions{.eps = 0}, static_cast<Adam*>(nullptr), "Adam: eps must be finite and at least 1e-37, not 0");
  refused(RmsPropOptions{.alpha = -0.1}, static_cast<RmsProp*>(nullptr), "RmsProp: alpha must be in [0, 1)");
  refused(RmsPropOptions{.momentum = -1}, static_cast<RmsProp*>(nullptr), "RmsProp: momentum must be");
  refused(AdagradOptions{.eps = kNan}, static_cast<Adagrad*>(nullptr), "Adagrad: eps must be");
  refused(AdagradOptions{.initial_sum = -1}, static_cast<Adagrad*>(nullptr), "Adagrad: initial_sum must be");
  refused(LionOptions{.beta2 = 2}, static_cast<Lion*>(nullptr), "Lion: beta2 must be in [0, 1), not 2");
  refused(LambOptions{.weight_decay = kInf}, static_cast<Lamb*>(nullptr), "Lamb: weight_decay must be");
  refused(AdafactorOptions{.clip = 0}, static_cast<Adafactor*>(nullptr), "Adafactor: clip must be finite and above 0");
  refused(AdafactorOptions{.beta2_decay = -0.8}, static_cast<Adafactor*>(nullptr), "Adafactor: beta2_decay must be");
  for (const auto& [options, text] : {std::pair{MuonOptions{.momentum = 1}, "Muon: momentum must be in [0, 1), not 1"},
                                      std::pair{MuonOptions{.iterations = 0}, "Muon: iterations must be at least 1"},
                                      std::pair{MuonOptions{.adamw_eps = 0}, "Muon: adamw_eps must be"}}) {
    CHECK(has(message_of([&] { Muon muon(one_group(list), {}, options); }), text));
    CHECK_FALSE(list[0].packed());
  }
}

TEST_CASE("Ema: the formula, warm-up, exchange, saving") {
  std::vector<Parameter> list = make_parameters({{3, 5}, {40000}});
  AdamW optimizer(one_group(list));
  Ema ema(one_group(list)[0].parameters, {.decay = 0.5});
  Ema plain(one_group(list)[0].parameters, {.decay = 0.5, .warm_up = false});
  std::vector<double> expected = values_of(list), without = expected;
  for (int t = 0; t < 12; ++t) {
    random_grads(list, static_cast<std::uint64_t>(t));
    optimizer.step({.lr = 0.1});
    ema.update();
    plain.update();
    const double decay = std::min(0.5, (1.0 + t) / (10 + t));
    const std::vector<double> now = values_of(list);
    for (std::size_t i = 0; i < now.size(); ++i) {
      expected[i] = decay * expected[i] + (1 - decay) * now[i];
      without[i] = 0.5 * without[i] + 0.5 * now[i];
    }
  }
  CHECK(ema.updates() == 12);
  double worst = 0, worst_without = 0;
  for (std::int64_t i = 0; i < 15; ++i) {
    worst = std::max(worst, std::abs(ema.average("p0").at(i) - expected[static_cast<std::size_t>(i)]));
    worst_without = std::max(worst_without, std::abs(plain.average("p0").at(i) - without[static_cast<std::size_t>(i)]));
  }
  CHECK(worst < 1e-6);
  CHECK(worst_without < 1e-6);

  const std::vector<double> weights = values_of(list);
  const Tensor average = ema.average("p0").clone();
  const std::uint32_t version = list[0].version();
  {
    const Ema::Swap swap(ema);
    CHECK(same_bits(list[0].value(), average));
    CHECK(list[0].version() != version);  // no cached copy of the weights is taken for one of the average
    CHECK(list[0].packed());
    CHECK_THROWS_AS(ema.update(), Error);
    CHECK_THROWS_AS(Ema::Swap{ema}, Error);
    CHECK_THROWS_AS(ema.copy_to_model(), Error);
  }
  CHECK(values_of(list) == weights);
  CHECK(same_bits(ema.average("p0"), average));
  try {
    const Ema::Swap swap(ema);
    fail("evaluation");
  } catch (const Error&) {}
  CHECK(values_of(list) == weights);

  // As buffers they are saved and come back bit for bit.
  const TemporaryFolder folder;
  save_training_state(folder / "ema.h5", ema, nullptr, {});
  Ema loaded(one_group(list)[0].parameters, {.decay = 0.5});
  load_training_state(folder / "ema.h5", loaded, nullptr);
  CHECK(loaded.updates() == 12);
  CHECK(same_bits(loaded.average("p1"), ema.average("p1")));
  ema.copy_to_model();
  CHECK(same_bits(list[0].value(), average));

  CHECK_THROWS_WITH_AS(Ema(one_group(list)[0].parameters, {.decay = 1}), "Ema: decay must be in [0, 1), not 1", Error);
  CHECK_THROWS_AS(Ema({}, {}), Error);
  CHECK_THROWS_AS((void)ema.average("p9"), Error);
}
