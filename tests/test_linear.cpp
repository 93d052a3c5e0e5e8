// The fused forms of linear against what they are made of.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "autograd/ops.h"
#include "core/kernels/linear.h"

using namespace tapestry;

namespace {

Tensor normal(const Shape& shape, std::uint64_t stream, double std = 1) {
  Tensor t = empty(shape);
  fill_normal(t, 0, std, RandomKey{1, stream});
  return t;
}

// Value and all gradients of f, whose result is weighted unevenly.
template <class F>
std::vector<Tensor> run(F f, const std::vector<Tensor>& inputs) {
  Tape tape;
  std::vector<Var> vars;
  for (const Tensor& t : inputs) vars.push_back(tape.watch(t));
  const Var y = f(vars);
  tape.backward(y, normal(y.shape(), 99));
  std::vector<Tensor> result{y.value()};
  for (const Var& v : vars) result.push_back(tape.grad(v));
  return result;
}

void check_close(const std::vector<Tensor>& a, const std::vector<Tensor>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (std::size_t k = 0; k < a.size(); ++k) {
    CAPTURE(k);
    REQUIRE(a[k].shape() == b[k].shape());
    for (std::int64_t i = 0; i < a[k].numel(); ++i) {
      CAPTURE(i);
      REQUIRE(std::abs(a[k].at(i) - b[k].at(i)) <= tolerance * (1 + std::abs(b[k].at(i))));
    }
  }
}

struct Size {
  std::int64_t rows, in, out;
};
// One row; a tile and less; edges; several blocks of k; wide panels.
constexpr Size kSizes[] = {{1, 7, 5},      {1, 600, 300}, {8, 16, 48}, {13, 31, 65},
                           {70, 1100, 49}, {33, 40, 800}, {0, 3, 4}};

}  // namespace

TEST_CASE("linear_gelu is gelu of linear") {
  for (const Size& s : kSizes)
    for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) {
      CAPTURE(s.in);
      const std::vector<Tensor> inputs{normal({s.rows, s.in}, 1), normal({s.in, s.out}, 2, 0.1), normal({s.out}, 3)};
      const auto fused = [&](const std::vector<Var>& v) { return linear_gelu(v[0], v[1], v[2], form); };
      const auto composed = [&](const std::vector<Var>& v) {
        const Var h = linear(v[0], v[1], v[2]);
        return form == GeluForm::erf ? gelu(h) : gelu_tanh(h);
      };
      check_close(run(fused, inputs), run(composed, inputs), 0);
    }
}

TEST_CASE("linear with a residual is the sum of both") {
  for (const Size& s : kSizes)
    for (const bool with_bias : {false, true}) {
      CAPTURE(s.in);
      std::vector<Tensor> inputs{normal({s.rows, s.in}, 1), normal({s.in, s.out}, 2, 0.1), normal({s.rows, s.out}, 3)};
      if (with_bias) inputs.push_back(normal({s.out}, 4));
      const auto bias = [](const std::vector<Var>& v) { return v.size() > 3 ? v[3] : Var(); };
      const auto fused = [&](const std::vector<Var>& v) { return linear(v[0], v[1], bias(v), v[2]); };
      const auto composed = [&](const std::vector<Var>& v) { return v[2] + linear(v[0], v[1], bias(v)); };
      check_close(run(fused, inputs), run(composed, inputs), 1e-5);
    }
}

TEST_CASE("in 16 bits linear_gelu is gelu of the h that was rounded") {
  for (const DType low : {DType::bf16, DType::f16})
    for (const Size& s : kSizes)
      for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) {
        CAPTURE(s.in);
        const Tensor x = normal({s.rows, s.in}, 1).to(low), w = normal({s.in, s.out}, 2, 0.1).to(low),
                     bias = normal({s.out}, 3);
        Tensor h = empty({s.rows, s.out}, low), y = empty_like(h), want = empty_like(h);
        cpu::linear_gelu_forward(x, w, bias, form, h, y);
        cpu::linear_forward(x, w, bias, Tensor(), want);
        CHECK(same_bits(h, want));
        const Var wide = form == GeluForm::erf ? gelu(Var(h.to(DType::f32))) : gelu_tanh(Var(h.to(DType::f32)));
        CHECK(same_bits(y, wide.value().to(low)));
      }
}

TEST_CASE("in 16 bits a residual in f32 is added before the one rounding") {
  for (const DType low : {DType::bf16, DType::f16})
    for (const Size& s : kSizes) {
      CAPTURE(s.in);
      const Tensor x = normal({s.rows, s.in}, 1).to(low), w = normal({s.in, s.out}, 2, 0.1).to(low),
                   residual = normal({s.rows, s.out}, 3);
      Tensor y = empty({s.rows, s.out}, low), wide = empty({s.rows, s.out});
      cpu::linear_forward(x, w, Tensor(), residual, y);
      cpu::linear_forward(x, w, Tensor(), residual, wide);
      CHECK(same_bits(y, wide.to(low)));
    }
}

TEST_CASE("NaN and infinity pass through the fused forms") {
  const Tensor x = tensor({1, 2}, {1, 2}), w = tensor({1, 0, 0, 1}, {2, 2});
  Tensor bias = tensor({0, std::numeric_limits<double>::quiet_NaN()});
  const Var y = linear_gelu(x, w, bias);
  CHECK(y.value().at(0) == doctest::Approx(0.8413447));
  CHECK(std::isnan(y.value().at(1)));
  bias = tensor({0, -std::numeric_limits<double>::infinity()});
  CHECK(std::abs(linear_gelu(x, w, bias).value().at(1)) == 0);
  CHECK(std::isnan(linear(x, w, {}, Var(tensor({0, std::numeric_limits<double>::quiet_NaN()}, {1, 2}))).value().at(1)));
}

TEST_CASE("a residual that does not fit is an error that names both") {
  const Tensor x = zeros({2, 3}), w = zeros({3, 4});
  CHECK_THROWS_WITH(linear(x, w, {}, Var(zeros({4}))),
                    "linear: the result is f32 [2, 4], so residual must be too, not f32 [4]");
}
