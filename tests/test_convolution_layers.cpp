// Conv1d and Conv2d: initial weights, names, what they compute and refuse, and networks of them that learn.
#include "layers/activation.h"
#include "layers/convolution.h"
#include "layers/linear.h"
#include "layers/sequential.h"
#include "layers/summary.h"
#include "optim/adam.h"
#include "tests/allocation_counter.h"
#include "tests/error_message.h"
#include "tests/row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

constexpr std::int64_t kSide = 8;

// Images of noise with one straight stroke of five pixels, lying (class 0) or standing (class 1), anywhere.
struct Strokes {
  Tensor images, classes;
};
Strokes draw_strokes(std::int64_t count, std::uint64_t stream) {
  Strokes s{empty({count, 1, kSide, kSide}), empty({count}, DType::i32)};
  fill_normal(s.images, 0, 0.3, RandomKey{21, stream});
  float* pixels = s.images.mutable_data<float>();
  const RandomKey key{22, stream};
  for (std::int64_t n = 0; n < count; ++n) {
    const bool standing = key.below(3 * n, 2) == 1;
    const std::int64_t along = key.below(3 * n + 1, kSide - 4), across = key.below(3 * n + 2, kSide);
    for (std::int64_t i = along; i < along + 5; ++i)
      pixels[n * kSide * kSide + (standing ? i * kSide + across : across * kSide + i)] += 1;
    s.classes.mutable_data<std::int32_t>()[n] = standing;
  }
  return s;
}

// Two convolutions, the mean over places, and a linear layer.
class StrokeNet : public Module {
 public:
  explicit StrokeNet(Rng& rng)
      : first({.in = 1, .out = 6, .size = 3, .padding = 1}, rng),
        second({.in = 6, .out = 8, .size = 3, .stride = 2, .groups = 2}, rng),
        head(8, 2, rng) {}
  Var operator()(const Var& x) const { return head(mean(relu(second(relu(first(x)))), {2, 3})); }
  void visit(Visitor& v) override {
    v("first", first);
    v("second", second);
    v("head", head);
  }

  Conv2d first, second;
  Linear head;
};

double accuracy(const StrokeNet& net, const Strokes& s) {
  const NoGrad off;
  const Tensor logits = net(s.images).value();
  double right = 0;
  for (std::int64_t n = 0; n < s.classes.numel(); ++n)
    right += (logits.at(2 * n + 1) > logits.at(2 * n)) == (s.classes.at(n) == 1);
  return right / static_cast<double>(s.classes.numel());
}

// The network after 150 steps, and the accuracy on images it has not seen.
std::pair<std::vector<Tensor>, double> train_strokes() {
  Rng rng(3);
  StrokeNet net(rng);
  std::vector<Tensor> weights;
  {
    AdamW optimizer(parameters(net));
    for (int step = 0; step < 150; ++step) {
      const Strokes batch = draw_strokes(32, static_cast<std::uint64_t>(step));
      Tape tape;
      tape.backward(cross_entropy(net(batch.images), batch.classes).loss);
      optimizer.step({.lr = 0.02});
    }
    for (const NamedParameter& p : parameters(net)) weights.push_back(p.parameter->value().clone());
  }
  return {weights, accuracy(net, draw_strokes(500, 1000))};
}

}  // namespace

TEST_CASE("R02 Conv1d and Conv2d begin uniform within 1 / sqrt(fan_in), weight and bias") {
  Rng rng(1);
  const auto check = [](const Parameter& p, double bound) {
    double largest = 0, squares = 0;
    for (const double v : to_doubles(p.value())) {
      largest = std::max(largest, std::abs(v));
      squares += v * v;
    }
    CHECK(largest <= bound * (1 + 1e-6));
    CHECK(largest > 0.9 * bound);
    CHECK(std::sqrt(squares / static_cast<double>(p.numel())) == doctest::Approx(bound / std::sqrt(3.0)).epsilon(0.1));
  };
  const Conv2d plane({.in = 8, .out = 128, .size = {3, 5}, .groups = 2}, rng);
  CHECK(plane.weight.shape() == Shape{128, 4, 3, 5});
  check(plane.weight, 1 / std::sqrt(60.0));
  check(*plane.bias, 1 / std::sqrt(60.0));
  const Conv1d line({.in = 7, .out = 150, .size = 4}, rng);
  CHECK(line.weight.shape() == Shape{150, 7, 4});
  check(line.weight, 1 / std::sqrt(28.0));
  check(*line.bias, 1 / std::sqrt(28.0));
}

TEST_CASE("Conv1d and Conv2d call conv1d and conv2d with all their options") {
  Rng rng(2);
  Conv2d plane(
      {.in = 4, .out = 6, .size = {2, 3}, .stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2}, rng);
  const Tensor x = random_normal({2, 4, 7, 6}, DType::f32, 1);
  const Var y =
      conv2d(x, plane.weight, *plane.bias, {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2});
  CHECK(same_bits(plane(x).value(), y.value()));
  const Conv1d line(
      {.in = 4, .out = 2, .size = 3, .stride = 2, .padding = 1, .dilation = 3, .groups = 2, .bias = false}, rng);
  CHECK_FALSE(line.bias);
  const Tensor z = random_normal({2, 4, 11}, DType::f32, 2);
  const Var right = conv1d(z, line.weight, {}, {.stride = 2, .padding = 1, .dilation = 3, .groups = 2});
  CHECK(same_bits(line(z).value(), right.value()));

  const std::vector<NamedParameter> named = parameters(plane);
  REQUIRE(named.size() == 2);
  CHECK(named[0].name == "weight");
  CHECK(named[1].name == "bias");
  CHECK(has(summary(plane), "[6, 2, 2, 3]"));
  CHECK(plane.own_flops() == 2 * 6 * 2 * 2 * 3);
}

TEST_CASE("what Conv1d and Conv2d refuse") {
  Rng rng(3);
  const auto text = [&](const Conv2dConfig& c) { return message_of([&] { Conv2d(c, rng); }); };
  CHECK(text({}) == "conv2d: in and out must be at least 1, not 0 and 0");
  CHECK(text({.in = 6, .out = 4, .size = 3, .groups = 3}) ==
        "conv2d: 3 groups do not divide 4 channels; use one of 1, 2, 4");
  CHECK(text({.in = 4, .out = 3, .size = 1, .groups = 3}) ==
        "conv2d: 3 groups do not divide 4 channels; use one of 1, 2, 4");
  CHECK(has(text({.in = 4, .out = 4, .size = 1, .groups = 0}), "conv2d: 0 groups do not divide"));
  CHECK(text({.in = 1, .out = 1}) ==
        "conv2d: size, stride and dilation must be at least 1 and padding at least 0, not 0, 1, 1 and 0");
  CHECK(has(text({.in = 1, .out = 1, .size = {1, 2}, .stride = {1, 0}}), "not 2, 0, 1 and 0"));
  CHECK(has(text({.in = 1, .out = 1, .size = 1, .padding = -1}), "not 1, 1, 1 and -1"));
  CHECK(has(text({.in = 1, .out = 1, .size = 1, .dilation = {0, 1}}), "not 1, 1, 0 and 0"));
  CHECK(message_of([&] { Conv1d({.in = 1, .out = 2}, rng); }) ==
        "conv1d: size, stride and dilation must be at least 1 and padding at least 0, not 0, 1, 1 and 0");
  CHECK(message_of([&] { Conv1d({.in = 2, .out = 3, .size = 1, .groups = 2}, rng); }) ==
        "conv1d: 2 groups do not divide 3 channels; use one of 1, 3");
}

TEST_CASE("a network of Conv2d tells lying from standing strokes; the same bits for any number of threads") {
  double right = 0;
  check_same_bits_for_any_threads([&] {
    const auto [weights, share] = train_strokes();
    right = share;
    return weights;
  });
  CHECK(right > 0.97);
}

TEST_CASE("Conv1d learns a difference of neighbours") {
  Rng rng(4);
  Sequential net{Conv1d({.in = 1, .out = 4, .size = 5, .padding = 2}, rng),
                 Conv1d({.in = 4, .out = 1, .size = 1}, rng)};
  const Tensor taps = tensor({0, -1, 0, 1, 0}, {1, 1, 5});
  AdamW optimizer(parameters(net), {.weight_decay = 0});
  double first = 0, last = 0;
  std::int64_t heap = 0;
  for (int step = 0; step < 300; ++step) {
    const Tensor x = random_normal({8, 1, 20}, DType::f32, static_cast<std::uint64_t>(step));
    heap = heap_allocations;
    Tape tape;
    const Var loss = mse(net(x), conv1d(x, taps, {}, {.padding = 2}).detach());
    last = loss.item();
    tape.backward(loss);
    optimizer.step({.lr = 0.03});
    if (step == 0) first = last;
    if (step > 2) CHECK(heap_allocations == heap);
  }
  CHECK(first > 0.5);
  CHECK(last < 1e-4);
}
