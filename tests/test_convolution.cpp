// unfold, conv1d, conv2d: direct loops, the unfolded composition, special values, threads, offsets, memory, refusals.
#include <array>

#include "autograd/ops.h"
#include "core/kernels/convolution.h"
#include "tests/allocation_counter.h"
#include "tests/error_message.h"
#include "tests/row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

struct Sample {
  Shape x, weight;
  Conv2dOptions options = {};
};

const std::vector<Sample> kSamples{
    {{1, 1, 1, 1}, {1, 1, 1, 1}},
    {{2, 3, 5, 4}, {4, 3, 2, 3}},
    {{2, 3, 5, 4}, {4, 3, 1, 1}},
    {{1, 2, 3, 3}, {3, 2, 3, 3}, {.padding = 2}},
    {{2, 4, 7, 8}, {6, 2, 3, 2}, {.stride = {2, 3}, .padding = {1, 4}, .dilation = {2, 3}, .groups = 2}},
    {{1, 6, 4, 5}, {6, 1, 3, 3}, {.padding = 1, .groups = 6}},
    {{3, 4, 5, 5}, {2, 2, 1, 1}, {.groups = 2}},
    {{2, 2, 5, 5}, {2, 2, 1, 1}, {.stride = 2}},
    {{0, 2, 4, 4}, {3, 2, 2, 2}},
    {{1, 1, 1, 1}, {2, 1, 2, 2}, {.stride = 5, .padding = 4}},
    {{1, 1, 31, 33}, {1, 1, 5, 3}, {.padding = {0, 1}}},
    {{2, 67, 13, 11}, {33, 67, 3, 3}, {.padding = 1}},      // several blocks of channels, of taps
    {{1, 3, 61, 211}, {9, 3, 5, 3}, {.dilation = {1, 2}}},  // several blocks of places
    {{5, 33, 7, 9}, {67, 33, 1, 1}},
    {{2, 262, 3, 4}, {6, 131, 1, 1}, {.groups = 2}},
};

struct Results {
  std::vector<double> y, dx, dweight, dbias;
};

// The definition, loop by loop, in double.
Results by_loops(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& dy, const Conv2dOptions& o) {
  const Shape &s = x.shape(), &w = weight.shape(), &r = dy.shape();
  Results out{std::vector<double>(static_cast<std::size_t>(dy.numel())),
              std::vector<double>(static_cast<std::size_t>(x.numel())),
              std::vector<double>(static_cast<std::size_t>(weight.numel())),
              std::vector<double>(static_cast<std::size_t>(w[0]))};
  const std::vector<double> vx = to_doubles(x), vw = to_doubles(weight), vdy = to_doubles(dy);
  const std::int64_t group_out = w[0] / o.groups;
  for (std::int64_t n = 0; n < s[0]; ++n)
    for (std::int64_t c_out = 0; c_out < w[0]; ++c_out)
      for (std::int64_t p = 0; p < r[2]; ++p)
        for (std::int64_t q = 0; q < r[3]; ++q) {
          const auto at_y = static_cast<std::size_t>(((n * w[0] + c_out) * r[2] + p) * r[3] + q);
          out.y[at_y] = bias.at(c_out);
          out.dbias[static_cast<std::size_t>(c_out)] += vdy[at_y];
          for (std::int64_t c = 0; c < w[1]; ++c)
            for (std::int64_t i = 0; i < w[2]; ++i)
              for (std::int64_t j = 0; j < w[3]; ++j) {
                const std::int64_t h = p * o.stride.h + i * o.dilation.h - o.padding.h;
                const std::int64_t v = q * o.stride.w + j * o.dilation.w - o.padding.w;
                if (h < 0 || h >= s[2] || v < 0 || v >= s[3]) continue;
                const std::int64_t channel = c_out / group_out * w[1] + c;
                const auto at_x = static_cast<std::size_t>(((n * s[1] + channel) * s[2] + h) * s[3] + v);
                const auto at_w = static_cast<std::size_t>(((c_out * w[1] + c) * w[2] + i) * w[3] + j);
                out.y[at_y] += vw[at_w] * vx[at_x];
                out.dx[at_x] += vw[at_w] * vdy[at_y];
                out.dweight[at_w] += vx[at_x] * vdy[at_y];
              }
        }
  return out;
}

ConvolutionLayout layout_of(const Sample& c) {
  const Conv2dOptions& o = c.options;
  const Window window{{c.weight[2], o.stride.h, o.padding.h, o.dilation.h},
                      {c.weight[3], o.stride.w, o.padding.w, o.dilation.w}};
  return {c.x[0], c.x[1], c.weight[0], o.groups, Unfolding(window, c.x[2], c.x[3])};
}

Shape result_of(const ConvolutionLayout& l) { return {l.batch, l.out_channels, l.unfolding.down, l.unfolding.across}; }

// y, dx, dweight and dbias of a convolution with the given cotangent.
std::array<Tensor, 4> differentiate(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& dy,
                                    const Conv2dOptions& options = {}) {
  Tape tape;
  const Var vx = tape.watch(x), vw = tape.watch(weight), vb = tape.watch(bias);
  const Var y = conv2d(vx, vw, vb, options);
  tape.backward(y, dy);
  return {y.value(), tape.grad(vx), tape.grad(vw), tape.grad(vb)};
}

// The same from unfold and matmul, group by group.
Var composed(const Var& x, const Var& weight, const Var& bias, const Conv2dOptions& o) {
  const Shape &s = x.shape(), &w = weight.shape();
  const std::int64_t in = s[1] / o.groups, out = w[0] / o.groups;
  const UnfoldOptions window{.stride = o.stride, .padding = o.padding, .dilation = o.dilation};
  std::vector<Var> parts;
  for (std::int64_t g = 0; g < o.groups; ++g) {
    const Var columns = unfold(slice(x, 1, g * in, (g + 1) * in), {w[2], w[3]}, window);
    parts.push_back(matmul(reshape(slice(weight, 0, g * out, (g + 1) * out), {out, -1}), columns));
  }
  return concat(parts, 1) + reshape(bias, Shape{w[0], 1});
}

}  // namespace

TEST_CASE_TEMPLATE("conv2d agrees with direct loops, first and second write", T, float, double) {
  for (const Sample& c : kSamples) {
    CAPTURE(c.x);
    CAPTURE(c.weight);
    const ConvolutionLayout layout = layout_of(c);
    const Tensor x = random_normal(c.x, dtype_of<T>, 1), weight = random_normal(c.weight, dtype_of<T>, 2);
    const Tensor bias = random_normal({c.weight[0]}, dtype_of<T>, 3);
    const Tensor dy = random_normal(result_of(layout), dtype_of<T>, 4);
    const Results right = by_loops(x, weight, bias, dy, c.options);
    // Sums of up to some ten thousand terms, in whose rounding cancellation shows.
    const double tolerance = 20 * kTolerance<T>;
    check_close(conv2d(x, weight, bias, c.options).value(), right.y, tolerance);
    for (const bool second : {false, true}) {
      Target dx(c.x, dtype_of<T>, second), dweight(c.weight, dtype_of<T>, second);
      Target dbias({c.weight[0]}, dtype_of<T>, second);
      cpu::convolution_backward(dy, x, weight, layout, dx.grad(), dweight.grad(), dbias.grad());
      dx.check(right.dx, tolerance);
      dweight.check(right.dweight, tolerance);
      dbias.check(right.dbias, tolerance);
    }
  }
}

TEST_CASE("conv2d equals unfold and matmul, value and gradients") {
  for (const Sample& c : kSamples) {
    CAPTURE(c.x);
    CAPTURE(c.weight);
    const Tensor x = random_normal(c.x, DType::f64, 1), weight = random_normal(c.weight, DType::f64, 2);
    const Tensor bias = random_normal({c.weight[0]}, DType::f64, 3);
    const Shape result = result_of(layout_of(c));
    const Tensor dy = random_normal(result, DType::f64, 4);
    const auto got = differentiate(x, weight, bias, dy, c.options);
    Tape tape;
    const Var vx = tape.watch(x), vw = tape.watch(weight), vb = tape.watch(bias);
    const Var y = composed(vx, vw, vb, c.options);
    tape.backward(y, dy.reshape(y.shape()));
    check_close(got[0], to_doubles(y.value()), 1e-12);
    check_close(got[1], to_doubles(tape.grad(vx)), 1e-12);
    check_close(got[2], to_doubles(tape.grad(vw)), 1e-11);
    check_close(got[3], to_doubles(tape.grad(vb)), 1e-12);
  }
}

TEST_CASE("conv1d is conv2d with height 1, bit for bit") {
  const Conv1dOptions o{.stride = 2, .padding = 3, .dilation = 2, .groups = 2};
  const Tensor x = random_normal({3, 4, 17}, DType::f32, 1), weight = random_normal({6, 2, 3}, DType::f32, 2);
  const Tensor bias = random_normal({6}, DType::f32, 3), dy = random_normal({3, 6, 10}, DType::f32, 4);
  Tape tape;
  const Var vx = tape.watch(x), vw = tape.watch(weight), vb = tape.watch(bias);
  const Var y = conv1d(vx, vw, vb, o);
  CHECK(y.shape() == dy.shape());
  tape.backward(y, dy);
  const auto flat =
      differentiate(x.reshape({3, 4, 1, 17}), weight.reshape({6, 2, 1, 3}), bias, dy.reshape({3, 6, 1, 10}),
                    {.stride = {1, 2}, .padding = {0, 3}, .dilation = {1, 2}, .groups = 2});
  CHECK(same_bits(y.value(), flat[0].reshape(y.shape())));
  CHECK(same_bits(tape.grad(vx), flat[1].reshape(x.shape())));
  CHECK(same_bits(tape.grad(vw), flat[2].reshape(weight.shape())));
  CHECK(same_bits(tape.grad(vb), flat[3]));
}

TEST_CASE("conv1d by hand: cross-correlation, not convolution") {
  const Tensor x = tensor({1, 2, 3, 4}, {1, 1, 4}), weight = tensor({10, 1, 0}, {1, 1, 3});
  check_close(conv1d(x, weight).value(), {12, 23}, 0);
  check_close(conv1d(x, weight, tensor({0.5}), {.padding = 1}).value(), {1.5, 12.5, 23.5, 34.5}, 0);
  check_close(conv1d(x, weight, {}, {.stride = 2, .padding = 1}).value(), {1, 23}, 0);
  check_close(conv1d(x, weight, {}, {.padding = 2, .dilation = 2}).value(), {1, 2, 13, 24}, 0);
}

TEST_CASE("unfold by hand: rows are channel, then tap; columns are places") {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 2, 2});
  const Var y = unfold(x, {1, 2}, {.padding = {0, 1}});
  CHECK(y.shape() == Shape{1, 4, 6});
  check_close(y.value(), {0, 1, 2, 0, 3, 4, 1, 2, 0, 3, 4, 0, 0, 5, 6, 0, 7, 8, 5, 6, 0, 7, 8, 0}, 0);
  Tape tape;
  const Var v = tape.watch(x);
  tape.backward(sum(unfold(v, 2, {.padding = 1})));
  check_close(tape.grad(v), std::vector<double>(8, 4), 0);  // each element is seen by four windows
  CHECK(unfold(zeros({0, 2, 3, 3}), 2).shape() == Shape{0, 8, 4});
}

TEST_CASE_TEMPLATE("unfold forward and backward on gradients that hold something", T, float, double) {
  for (const Sample& c : kSamples) {
    if (c.options.groups != 1) continue;
    const Unfolding u = layout_of(c).unfolding;
    const Tensor x = random_normal(c.x, dtype_of<T>, 1);
    Tensor y = full({c.x[0], c.x[1] * u.taps(), u.places()}, kNaN, dtype_of<T>);
    cpu::unfold_forward(x, u, y);
    const Tensor dy = random_normal(y.shape(), dtype_of<T>, 2);
    std::vector<double> right_y, right_dx(static_cast<std::size_t>(x.numel()));
    for (std::int64_t i = 0; i < y.numel(); ++i) {
      const std::int64_t place = i % u.places(), row = i / u.places(), tap = row % u.taps();
      const std::int64_t h = u.window.h.element(place / u.across, tap / u.window.w.size);
      const std::int64_t w = u.window.w.element(place % u.across, tap % u.window.w.size);
      const bool inside = h >= 0 && h < u.height && w >= 0 && w < u.width;
      const std::int64_t at = row / u.taps() * u.plane() + h * u.width + w;
      right_y.push_back(inside ? x.at(at) : 0);
      if (inside) right_dx[static_cast<std::size_t>(at)] += dy.at(i);
    }
    check_close(y, right_y, 0);
    for (const bool second : {false, true}) {
      Target dx(c.x, dtype_of<T>, second);
      cpu::unfold_backward(dy, u, dx.grad());
      dx.check(right_dx, kTolerance<T>);
    }
  }
}

TEST_CASE("NaN and infinity reach the windows that see them, and no others") {
  Tensor x = full({2, 2, 6, 6}, 1);
  x.mutable_data<float>()[36 + 2 * 6 + 3] = static_cast<float>(kNaN);  // sample 0, channel 1, at (2, 3)
  const Tensor weight = full({3, 2, 3, 3}, 1), bias = zeros({3});
  const Tensor y = conv2d(x, weight, bias, {.padding = 1}).value();
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    const std::int64_t h = i / 6 % 6, w = i % 6, n = i / 108;
    CHECK(std::isnan(y.at(i)) == (n == 0 && std::abs(h - 2) <= 1 && std::abs(w - 3) <= 1));
  }

  // A NaN in dy: what its window saw, all weights of its output channel, its bias.
  Tensor dy = full({2, 3, 6, 6}, 1);
  dy.mutable_data<float>()[36] = static_cast<float>(kNaN);  // sample 0, output channel 1, at (0, 0)
  const auto grads = differentiate(full({2, 2, 6, 6}, 1), weight, bias, dy, {.padding = 1});
  for (std::int64_t i = 0; i < grads[1].numel(); ++i) {
    const std::int64_t h = i / 6 % 6, w = i % 6, n = i / 72;
    CHECK(std::isnan(grads[1].at(i)) == (n == 0 && h <= 1 && w <= 1));
  }
  for (std::int64_t i = 0; i < grads[2].numel(); ++i) CHECK(std::isnan(grads[2].at(i)) == (i / 18 == 1));
  for (std::int64_t i = 0; i < 3; ++i) CHECK(std::isnan(grads[3].at(i)) == (i == 1));

  // Groups keep apart.
  const Tensor apart = conv2d(x, full({2, 1, 3, 3}, 1), {}, {.padding = 1, .groups = 2}).value();
  for (std::int64_t i = 0; i < 36; ++i) CHECK(apart.at(i) == apart.at(72 + i));
}

TEST_CASE("padding is a zero like any other: an infinite weight over it gives NaN, as in PyTorch") {
  const Tensor x = tensor({1, 2, 3}, {1, 1, 3}), weight = tensor({kInf, 1}, {1, 1, 2});
  check_close(conv1d(x, weight).value(), {kInf, kInf}, 0);
  check_close(conv1d(x, weight, {}, {.padding = 1}).value(), {kNaN, kInf, kInf, kInf}, 0);
}

TEST_CASE_TEMPLATE("F12 views offset by 1, 2 and 3 elements equal the packed result bit for bit", T, float, double) {
  for (const std::size_t sample : {1, 2, 4, 10}) {
    const Sample& c = kSamples[sample];
    const ConvolutionLayout layout = layout_of(c);
    const Tensor x = random_normal(c.x, dtype_of<T>, 1), weight = random_normal(c.weight, dtype_of<T>, 2);
    const Tensor bias = random_normal({c.weight[0]}, dtype_of<T>, 3);
    const Tensor dy = random_normal(result_of(layout), dtype_of<T>, 4);
    const auto packed = differentiate(x, weight, bias, dy, c.options);
    for (const std::int64_t offset : {1, 2, 3}) {
      const auto moved = differentiate(at_offset(x, offset), at_offset(weight, offset), at_offset(bias, offset),
                                       at_offset(dy, offset), c.options);
      for (std::size_t i = 0; i < packed.size(); ++i) CHECK(same_bits(packed[i], moved[i]));
      Target dx(c.x, dtype_of<T>, false, offset), dweight(c.weight, dtype_of<T>, false, offset);
      cpu::convolution_backward(dy, x, weight, layout, dx.grad(), dweight.grad(), {});
      CHECK(same_bits(dx.tensor(), packed[1]));
      CHECK(same_bits(dweight.tensor(), packed[2]));
    }
  }
}

TEST_CASE("R03 same bits for any number of threads") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Sample& c : {kSamples[4], kSamples[11], kSamples[12], kSamples[13],
                            Sample{{7, 16, 17, 19}, {33, 16, 3, 3}, {.stride = 2, .padding = 1}},
                            Sample{{19, 3, 9, 9}, {1, 3, 3, 3}}, Sample{{64, 31, 1, 1}, {65, 31, 1, 1}}}) {
      CAPTURE(c.x);
      const Tensor x = random_normal(c.x, dtype, 1), weight = random_normal(c.weight, dtype, 2);
      const Tensor bias = random_normal({c.weight[0]}, dtype, 3);
      const Tensor dy = random_normal(result_of(layout_of(c)), dtype, 4);
      check_same_bits_for_any_threads([&] {
        const auto all = differentiate(x, weight, bias, dy, c.options);
        return std::vector<Tensor>(all.begin(), all.end());
      });
    }
}

TEST_CASE("no heap allocation in steady state") {
  const Tensor x = random_normal({2, 4, 9, 9}, DType::f32, 1), weight = random_normal({6, 2, 3, 3}, DType::f32, 2);
  const Tensor bias = random_normal({6}, DType::f32, 3), line = random_normal({2, 3, 31}, DType::f32, 4);
  const Tensor taps = random_normal({5, 3, 3}, DType::f32, 5);
  for (int pass = 0; pass < 5; ++pass) {
    const std::int64_t before = heap_allocations;
    {
      Tape tape;
      const Var vx = tape.watch(x), vw = tape.watch(weight), vl = tape.watch(line);
      const Var y = conv2d(vx, vw, bias, {.padding = 1, .groups = 2});
      tape.backward(sum(y) + sum(unfold(vx, 2)) + sum(conv1d(vl, taps, {}, {.stride = 2})));
    }
    if (pass >= 2) CHECK(heap_allocations - before == 0);
  }
}

TEST_CASE("N = 0: an empty result, zero gradients of weight and bias") {
  const auto all = differentiate(zeros({0, 2, 5, 5}), full({3, 2, 3, 3}, 1), full({3}, 1), zeros({0, 3, 3, 3}));
  CHECK(all[0].shape() == Shape{0, 3, 3, 3});
  CHECK(all[1].shape() == Shape{0, 2, 5, 5});
  check_close(all[2], std::vector<double>(54, 0), 0);
  check_close(all[3], {0, 0, 0}, 0);
}

TEST_CASE("what unfold, conv1d and conv2d refuse") {
  const auto text = [](auto&& f) { return message_of(f); };
  const Tensor x = zeros({2, 4, 5, 6}), w = zeros({6, 4, 3, 3}), line = zeros({2, 4, 5}), v = zeros({6, 4, 3});
  CHECK(text([&] {
          unfold(zeros({2, 3, 4}), 2);
        }) == "unfold: x must be [N, C, H, W], not [2, 3, 4]; reshape it, with extents of 1 for absent axes");
  CHECK(text([&] { conv2d(line, w); }) ==
        "conv2d: x must be [N, C, H, W] and weight [out, C / groups, h, w], not [2, 4, 5] and [6, 4, 3, 3]");
  CHECK(text([&] { conv1d(line, w); }) ==
        "conv1d: x must be [N, C, L] and weight [out, C / groups, size], not [2, 4, 5] and [6, 4, 3, 3]");
  CHECK(text([&] {
          conv2d(x, zeros({6, 3, 3, 3}));
        }) == "conv2d: x is [2, 4, 5, 6] with 1 group, so axis 1 of weight must be 4, but it is [6, 3, 3, 3]");
  CHECK(text([&] { conv2d(x, w, {}, {.groups = 2}); }) ==
        "conv2d: x is [2, 4, 5, 6] with 2 groups, so axis 1 of weight must be 2, but it is [6, 4, 3, 3]");
  CHECK(text([&] { conv2d(x, w, {}, {.groups = 3}); }) ==
        "conv2d: 3 groups do not divide the 4 channels of x; use one of 1, 2, 4");
  CHECK(text([&] {
          conv2d(x, zeros({6, 1, 3, 3}), {}, {.groups = 4});
        }) == "conv2d: 4 groups do not divide the 6 output channels of weight; use one of 1, 2, 3, 6");
  CHECK(has(text([&] { conv1d(line, v, {}, {.groups = 0}); }), "conv1d: 0 groups do not divide"));
  CHECK(has(text([&] { conv1d(line, v, {}, {.groups = -2}); }), "conv1d: -2 groups do not divide"));
  CHECK(text([&] { conv1d(line, v, zeros({5})); }) == "conv1d: weight is [6, 4, 3], so bias must be [6], not [5]");
  CHECK(text([&] {
          conv2d(zeros({1, 0, 3, 3}), zeros({2, 0, 1, 1}));
        }) == "conv2d: x and weight need at least 1 channel, but they are [1, 0, 3, 3] and [2, 0, 1, 1]");
  CHECK(text([&] {
          conv2d(x, zeros({6, 4, 3, 3}, DType::f64));
        }) == "conv2d: x is f32, weight is f64; all operands must have one dtype; convert with cast()");
  CHECK(text([&] { conv2d(x, w, zeros({6}, DType::f64)); }) ==
        "conv2d: x is f32, weight is f32 and bias is f64; all operands must have one dtype; convert with cast()");
  CHECK(text([&] {
          conv1d(line, zeros({6, 4, 6}));
        }) ==
        "conv1d: a window of 6 with dilation 1 is longer than 5 elements with padding 0 at either end, x is [2, 4, 5]");
  CHECK(has(text([&] { conv2d(x, w, {}, {.dilation = {3, 1}}); }), "a window of 3 with dilation 3 is longer than 5"));
  for (const Conv2dOptions& o :
       {Conv2dOptions{.stride = {0, 1}}, Conv2dOptions{.padding = {0, -1}}, Conv2dOptions{.dilation = 0}})
    CHECK(has(text([&] { conv2d(x, w, {}, o); }),
              "conv2d: window size, stride and dilation must be at least 1 and padding at least 0"));
  CHECK(has(text([&] { unfold(x, {0, 2}); }), "unfold: window size"));
  CHECK(has(text([&] { unfold(x, {2, 2}, {.stride = 0}); }), "unfold: window size"));
  CHECK(has(text([&] { conv1d(line, zeros({6, 4, 0})); }), "conv1d: window size"));
}
