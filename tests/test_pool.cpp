// Pooling against plain loops; NaN, ties and infinities; threads, odd addresses, allocations, what it refuses.
#include "layers/pool.h"

#include "layers/sequential.h"
#include "tests/allocation_counter.h"
#include "tests/error_message.h"
#include "tests/row_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

struct Geometry {
  Shape x;  // [N, C, H, W]
  MaxPool2dOptions options;
};

const std::vector<Geometry> kGeometries{
    {{1, 1, 1, 1}, {.size = 1}},
    {{2, 3, 6, 8}, {.size = 2}},
    {{1, 2, 7, 9}, {.size = 2}},                                             // the last row and column unseen
    {{2, 1, 5, 7}, {.size = 3, .stride = 1, .padding = 1}},                  // overlapping
    {{1, 2, 31, 33}, {.size = 3, .stride = 2, .padding = 1}},                //
    {{1, 1, 9, 70}, {.size = {2, 5}, .stride = {3, 1}, .padding = {1, 2}}},  //
    {{1, 2, 9, 41}, {.size = {2, 4}, .stride = {1, 3}, .padding = {0, 2}}},  //
    {{1, 1, 11, 13}, {.size = {3, 2}, .stride = 2, .padding = 1, .dilation = {2, 3}}},  //
    {{1, 1, 9, 9}, {.size = 1, .stride = 4}},                                           // gaps
    {{1, 1, 5, 5}, {.size = 5}},                                                        // one window
    {{1, 1, 3, 3}, {.size = 4, .stride = 1, .padding = 2}},                             // larger than x
    {{0, 2, 4, 4}, {.size = 2}},
    {{2, 0, 4, 4}, {.size = 2}},
};

bool has_dilation(const Geometry& g) { return g.options.dilation.h > 1 || g.options.dilation.w > 1; }

// The elements of x under each window, in row-major order, window by window.
std::vector<std::vector<std::int64_t>> windows_of(const Geometry& g) {
  const Window w = pool_window("test", g.options);
  const std::int64_t height = g.x[2], width = g.x[3];
  std::vector<std::vector<std::int64_t>> windows;
  for (std::int64_t plane = 0; plane < g.x[0] * g.x[1]; ++plane)
    for (std::int64_t r = 0; r * w.h.stride + w.h.dilation * (w.h.size - 1) < height + 2 * w.h.padding; ++r)
      for (std::int64_t c = 0; c * w.w.stride + w.w.dilation * (w.w.size - 1) < width + 2 * w.w.padding; ++c) {
        auto& window = windows.emplace_back();
        for (std::int64_t i = 0; i < w.h.size; ++i)
          for (std::int64_t j = 0; j < w.w.size; ++j) {
            const std::int64_t h = r * w.h.stride - w.h.padding + i * w.h.dilation;
            const std::int64_t v = c * w.w.stride - w.w.padding + j * w.w.dilation;
            if (h >= 0 && h < height && v >= 0 && v < width) window.push_back((plane * height + h) * width + v);
          }
      }
  return windows;
}

PoolLayout layout_of(const Geometry& g) { return {g.x[0] * g.x[1], g.x[2], g.x[3], pool_window("test", g.options)}; }
Shape result_of(const Geometry& g) {
  const PoolLayout l = layout_of(g);
  return {g.x[0], g.x[1], l.rows(), l.columns()};
}

// y and the gradient of x of the right size, by a formula for one window: f(elements, dy, dx) returns y.
template <class F>
std::pair<std::vector<double>, std::vector<double>> reference(const Geometry& g, const Tensor& dy, F f) {
  std::vector<double> y, dx(static_cast<std::size_t>(g.x.numel()), 0.0);
  for (const auto& window : windows_of(g)) y.push_back(f(window, dy.at(static_cast<std::int64_t>(y.size())), dx));
  return {y, dx};
}

auto max_reference(const Geometry& g, const Tensor& x, const Tensor& dy) {
  return reference(g, dy, [&](const std::vector<std::int64_t>& window, double d, std::vector<double>& dx) {
    std::int64_t best = window.at(0);
    for (const std::int64_t i : window)
      if (!std::isnan(x.at(best)) && (x.at(i) > x.at(best) || std::isnan(x.at(i)))) best = i;
    dx[static_cast<std::size_t>(best)] += std::isnan(x.at(best)) ? kNaN : d;
    return x.at(best);
  });
}

auto avg_reference(const Geometry& g, const Tensor& x, const Tensor& dy, bool count_include_pad) {
  const double size = static_cast<double>(g.options.size.h * g.options.size.w);
  return reference(g, dy, [&](const std::vector<std::int64_t>& window, double d, std::vector<double>& dx) {
    const double n = count_include_pad ? size : static_cast<double>(window.size());
    double sum = 0;
    for (const std::int64_t i : window) {
      sum += x.at(i);
      dx[static_cast<std::size_t>(i)] += d / n;
    }
    return sum / n;
  });
}

void check_max(const Geometry& g, const Tensor& x, double tolerance) {
  const PoolLayout l = layout_of(g);
  const Tensor dy = random_normal(result_of(g), x.dtype(), 2);
  const auto [right, gradient] = max_reference(g, x, dy);
  Tensor y = full(dy.shape(), kNaN, x.dtype()), position = full(dy.shape(), -7, DType::i32);
  cpu::max_pool_forward(x, l, y, position);
  check_close(y, right, 0);
  for (const bool second : {false, true}) {
    Target dx(g.x, x.dtype(), second);
    cpu::max_pool_backward(dy, y, position, l, dx.grad());
    dx.check(gradient, tolerance);
  }
}

void check_avg(const Geometry& g, const Tensor& x, bool count_include_pad, double tolerance) {
  const PoolLayout l = layout_of(g);
  const Tensor dy = random_normal(result_of(g), x.dtype(), 2);
  const auto [right, gradient] = avg_reference(g, x, dy, count_include_pad);
  Tensor y = full(dy.shape(), kNaN, x.dtype());
  cpu::avg_pool_forward(x, l, count_include_pad, y);
  check_close(y, right, tolerance);
  for (const bool second : {false, true}) {
    Target dx(g.x, x.dtype(), second);
    cpu::avg_pool_backward(dy, l, count_include_pad, dx.grad());
    dx.check(gradient, tolerance);
  }
}

AvgPool2dOptions averaged(const MaxPool2dOptions& o, bool count = true) { return {o.size, o.stride, o.padding, count}; }

}  // namespace

TEST_CASE_TEMPLATE("pooling agrees with plain loops", T, float, double) {
  for (const Geometry& g : kGeometries) {
    CAPTURE(g.x);
    const Tensor x = random_normal(g.x, dtype_of<T>, 1);
    CHECK(max_pool2d(x, g.options).shape() == result_of(g));
    check_max(g, x, kTolerance<T>);
    if (has_dilation(g)) continue;
    CHECK(avg_pool2d(x, averaged(g.options)).shape() == result_of(g));
    for (const bool count : {true, false}) check_avg(g, x, count, kTolerance<T>);
  }
}

TEST_CASE_TEMPLATE("ties, NaN and infinities of every kind, against plain loops", T, float, double) {
  for (const Geometry& g : kGeometries) {
    CAPTURE(g.x);
    Tensor x = empty(g.x, dtype_of<T>);
    constexpr double kValues[] = {-1, 0, 1, -kInf, -kInf, -kInf, kInf, kNaN};
    for (const std::int64_t kinds : {3, 6, 7, 8}) {
      for (std::int64_t i = 0; i < x.numel(); ++i)
        x.mutable_data<T>()[i] = static_cast<T>(kValues[RandomKey{5, 6}.below(i, kinds)]);
      check_max(g, x, kTolerance<T>);
      if (!has_dilation(g)) check_avg(g, x, true, kTolerance<T>);
    }
  }
}

TEST_CASE("the first of equal maxima and the first NaN get the gradient") {
  const auto gradient = [](const Tensor& value, const MaxPool1dOptions& options) {
    Tape tape;
    const Var x = tape.watch(value);
    tape.backward(sum(max_pool1d(x, options)));
    return tape.grad(x);
  };
  check_close(gradient(tensor({2, 2, 2, 1}, {1, 1, 4}), {.size = 2}), {1, 0, 1, 0}, 0);
  check_close(gradient(full({1, 1, 3}, -kInf), {.size = 3}), {1, 0, 0}, 0);
  check_close(gradient(full({1, 1, 4}, -kInf), {.size = 3, .padding = 1}), {1, 0, 1, 0}, 0);  // not the padding
  check_close(gradient(tensor({1, kNaN, kInf, kNaN, 5, 6}, {1, 1, 6}), {.size = 3}), {0, kNaN, 0, kNaN, 0, 0}, 0);
  check_close(gradient(tensor({5, 1, 1, 9}, {1, 1, 4}), {.size = 2, .stride = 1}), {1, 1, 0, 1}, 0);
  check_close(gradient(tensor({1, 9, 1, 9}, {1, 1, 4}), {.size = 2, .stride = 1}), {0, 2, 0, 1}, 0);
}

TEST_CASE("values of PyTorch") {
  const Var x = tensor({1, 2, 3, 4, 5, 6, 7}, {1, 1, 7});
  check_close(avg_pool1d(x, {.size = 3, .stride = 2}).value(), {2, 4, 6}, 0);
  check_close(avg_pool1d(x, {.size = 4, .padding = 2}).value(), {0.75, 4.5}, 1e-7);
  check_close(avg_pool1d(x, {.size = 4, .padding = 2, .count_include_pad = false}).value(), {1.5, 4.5}, 1e-7);
  check_close(max_pool1d(x, {.size = 2, .stride = 2, .padding = 1}).value(), {1, 3, 5, 7}, 0);
  check_close(max_pool1d(x, {.size = 3, .stride = 1, .dilation = 2}).value(), {5, 6, 7}, 0);
  const Var square = tensor({1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 1, 3, 3});
  check_close(max_pool2d(square, {.size = 2, .stride = 1}).value(), {5, 6, 8, 9}, 0);
  check_close(avg_pool2d(square, {.size = {1, 3}}).value(), {2, 5, 8}, 0);
  check_close(avg_pool2d(square, {.size = 2, .stride = 2, .padding = 1}).value(), {0.25, 1.25, 2.75, 7}, 0);
  check_close(avg_pool2d(square, {.size = 2, .stride = 2, .padding = 1, .count_include_pad = false}).value(),
              {1, 2.5, 5.5, 7}, 0);
}

TEST_CASE("one axis is two axes with a height of 1") {
  const Tensor x = random_normal({2, 3, 37}, DType::f32, 1), seen = x.reshape({2, 3, 1, 37});
  const auto equal = [](const Var& line, const Var& plane) {
    return same_bits(line.value(), plane.value().reshape(line.shape()));
  };
  CHECK(equal(max_pool1d(x, {.size = 3, .stride = 2, .padding = 1, .dilation = 2}),
              max_pool2d(seen, {.size = {1, 3}, .stride = {1, 2}, .padding = {0, 1}, .dilation = {1, 2}})));
  CHECK(equal(avg_pool1d(x, {.size = 3, .padding = 1}), avg_pool2d(seen, {.size = {1, 3}, .padding = {0, 1}})));
}

TEST_CASE("layers") {
  const Sequential net{MaxPool2d({.size = 2}), AvgPool2d({.size = {1, 2}})};
  CHECK(net(random_normal({2, 3, 8, 8}, DType::f32, 1)).shape() == Shape{2, 3, 4, 2});
  const Tensor x = random_normal({2, 3, 8}, DType::f32, 1);
  CHECK(same_bits(MaxPool1d({.size = 3})(x).value(), max_pool1d(x, {.size = 3}).value()));
  CHECK(same_bits(AvgPool1d({.size = 3})(x).value(), avg_pool1d(x, {.size = 3}).value()));
  CHECK(AvgPool1d({.size = 3}).kind() == "AvgPool1d");
}

TEST_CASE("R03 same bits for any number of threads") {
  const Tensor x = random_normal({3, 7, 61, 63}, DType::f32, 1);
  const auto run = [&](const auto& pool) {
    Tape tape;
    const Var in = tape.watch(x), y = pool(in);
    tape.backward(sum(y * Var(random_normal(y.shape(), DType::f32, 2))));
    return std::vector{y.value(), tape.grad(in)};
  };
  for (const std::int64_t stride : {1, 2, 3}) {
    const MaxPool2dOptions o{.size = 5, .stride = stride, .padding = 2};
    check_same_bits_for_any_threads([&] { return run([&](const Var& v) { return max_pool2d(v, o); }); });
    check_same_bits_for_any_threads([&] { return run([&](const Var& v) { return avg_pool2d(v, averaged(o)); }); });
  }
}

TEST_CASE("F12 views offset by 1, 2 and 3 elements, odd lengths") {
  for (const Geometry& g : kGeometries) {
    const PoolLayout l = layout_of(g);
    const Tensor x = random_normal(g.x, DType::f32, 1), dy = random_normal(result_of(g), DType::f32, 2);
    for (const bool max : {true, false}) {
      if (!max && has_dilation(g)) continue;
      const auto run = [&](std::int64_t offset) {
        Tensor y = at_offset(zeros_like(dy), offset), position = at_offset(zeros(dy.shape(), DType::i32), offset);
        Target dx(g.x, DType::f32, false, offset);
        if (max) {
          cpu::max_pool_forward(at_offset(x, offset), l, y, position);
          cpu::max_pool_backward(at_offset(dy, offset), y, position, l, dx.grad());
        } else {
          cpu::avg_pool_forward(at_offset(x, offset), l, false, y);
          cpu::avg_pool_backward(at_offset(dy, offset), l, false, dx.grad());
        }
        return std::vector{y, dx.tensor()};
      };
      const std::vector<Tensor> packed = run(0);
      for (const std::int64_t offset : {1, 2, 3}) {
        const std::vector<Tensor> view = run(offset);
        CHECK(same_bits(packed[0], view[0]));
        CHECK(same_bits(packed[1], view[1]));
      }
    }
  }
}

TEST_CASE("no heap allocation once warm") {
  const Tensor value = random_normal({2, 3, 16, 16}, DType::f32, 1);
  const MaxPool2d max({.size = 3, .stride = 2, .padding = 1});
  const AvgPool2d average({.size = 2});
  std::int64_t allocations = 0;
  for (int step = 0; step < 4; ++step) {
    const std::int64_t before = heap_allocations;
    Tape tape;
    tape.backward(sum(average(max(tape.watch(value)))));
    allocations = heap_allocations - before;
  }
  CHECK(allocations == 0);
}

TEST_CASE("what pooling refuses") {
  const auto check = [](const std::function<void()>& f, const std::vector<std::string>& parts) {
    const std::string text = message_of(f);
    for (const std::string& part : parts) CHECK_MESSAGE(has(text, part), text);
  };
  const Var line = zeros({2, 3, 9}), plane = zeros({2, 3, 4, 5});
  check([&] { max_pool1d(plane, {.size = 2}); }, {"max_pool1d: x must be [N, C, L], not [2, 3, 4, 5]"});
  check([&] { avg_pool2d(line, {.size = 2}); }, {"avg_pool2d: x must be [N, C, H, W], not [2, 3, 9]"});
  check([&] { max_pool1d(zeros({9}), {.size = 2}); }, {"max_pool1d", "[9]"});
  check([&] { max_pool1d(line, {.size = 0}); }, {"max_pool1d: the window size must be at least 1, not 0"});
  check([&] { avg_pool2d(plane, {.size = 2, .stride = {1, -1}}); }, {"avg_pool2d: the stride", "-1"});
  check([&] { max_pool2d(plane, {.size = 2, .dilation = {0, 1}}); }, {"max_pool2d: the dilation", "0"});
  check(
      [&] {
        max_pool2d(plane, {.size = {2, 3}, .padding = {1, 2}});
      },
      {"max_pool2d: the padding must be 0 to half the window size 3, not 2", "pad makes x larger"});
  check([&] { avg_pool1d(line, {.size = 2, .padding = -1}); }, {"avg_pool1d: the padding", "-1"});
  check([&] { max_pool2d(plane, {.size = 5}); }, {"max_pool2d: a window of 5", "longer than 4", "[2, 3, 4, 5]"});
  check([&] { max_pool1d(zeros({2, 3, 0}), {.size = 2, .padding = 1}); }, {"max_pool1d", "padding", "[2, 3, 0]"});
  check([&] { avg_pool2d(zeros({2, 3, 4, 0}), {.size = 2, .padding = 1}); }, {"avg_pool2d", "padding", "[2, 3, 4, 0]"});
  check([&] { max_pool1d(line, {.size = 2, .padding = 1, .dilation = 10}); },  // taps at -1 and 9 of 9 elements
        {"max_pool1d", "dilation 10", "an axis of 9", "wholly in the padding"});
  CHECK_NOTHROW(max_pool1d(line, {.size = 2, .padding = 1, .dilation = 9}));
  check([&] { MaxPool2d({.size = 2, .padding = 2}); }, {"MaxPool2d: the padding", "2"});
  check([&] { AvgPool1d({.size = 0}); }, {"AvgPool1d: the window size", "0"});
  check([&] { max_pool1d(zeros({1, 1, 4}, DType::i32), {.size = 2}); }, {"max_pool", "i32"});
}
