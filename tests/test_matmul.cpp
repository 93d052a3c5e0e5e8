// Batched products and linear layers against plain loops in double, forward and backward.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/linear.h"
#include "core/kernels/matmul.h"
#include "core/parallel.h"

using namespace tapestry;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A number in [-1, 1) that depends on its arguments only.
double value(std::int64_t i, std::uint64_t seed) {
  std::uint64_t x = (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  return static_cast<double>(x >> 40) * 0x1p-23 - 1;
}

struct ThreadCount {
  explicit ThreadCount(int count) { set_num_threads(count); }
  ~ThreadCount() { set_num_threads(0); }
};

// The strides of an operand with these batch axes within the broadcast batch, in matrices.
void set_strides(const Shape& own, const Shape& batch, std::int64_t* strides) {
  const auto dense = own.strides();
  for (int axis = 0; axis < batch.rank(); ++axis) {
    const int i = axis - (batch.rank() - own.rank());
    strides[axis] = i < 0 || own[i] == 1 ? 0 : dense[static_cast<std::size_t>(i)];
  }
}

Tensor filled(const Shape& shape, DType dtype, std::uint64_t seed) {
  Tensor t = empty(shape, dtype);
  visit_float("test", dtype, [&]<class T>(TypeTag<T>) {
    T* data = t.mutable_data<T>();
    for (std::int64_t i = 0; i < t.numel(); ++i) data[i] = static_cast<T>(value(i, seed));
  });
  return t;
}

// Numbers that bf16, f16 and f32 all hold, so that it does not matter in which of them they are multiplied.
Tensor short_numbers(const Shape& shape, DType dtype, std::uint64_t seed) {
  if (dtype == DType::f64) return filled(shape, dtype, seed);
  Tensor t = filled(shape, DType::f32, seed);
  return is_16bit(dtype) ? t.to(DType::bf16).to(dtype) : t;
}

Shape join(const Shape& batch, std::int64_t rows, std::int64_t columns) {
  std::vector<std::int64_t> dims(batch.dims().begin(), batch.dims().end());
  dims.push_back(rows);
  dims.push_back(columns);
  return Shape(dims);
}

// Equal within `limit` and, in 16 bits, one rounding.
void check_close(const Tensor& got, const std::vector<double>& want, double limit) {
  REQUIRE(got.numel() == static_cast<std::int64_t>(want.size()));
  const double rounding = got.dtype() == DType::bf16 ? 0x1p-8 : got.dtype() == DType::f16 ? 0x1p-11 : 0;
  double worst = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    const double x = want[static_cast<std::size_t>(i)], difference = std::abs(got.at(i) - x) - rounding * std::abs(x);
    if (!(difference <= worst)) worst = difference;
  }
  CHECK(worst <= limit);
}

// A gradient that is written for the first time onto NaN, or added to what is there.
struct Target {
  Target(const Shape& shape, DType dtype, bool add) {
    slot.tensor = add ? short_numbers(shape, dtype, 9) : full(shape, kNan, dtype);
    slot.shape = shape;
    slot.dtype = dtype;
    slot.set = add;
    start.resize(static_cast<std::size_t>(shape.numel()));
    for (std::int64_t i = 0; add && i < shape.numel(); ++i) start[static_cast<std::size_t>(i)] = slot.tensor.at(i);
  }
  void check(std::vector<double> want, double limit) {
    CHECK(writes == 1);
    CHECK(slot.set);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += start[i];
    check_close(slot.tensor, want, limit);
  }
  Grad grad() { return Grad(&slot, &writes); }
  GradSlot slot;
  std::uint8_t writes = 0;
  std::vector<double> start;
};

struct Batched {
  Shape batch_a, batch_b;
  std::int64_t m, n, k;
};

// What each tensor of a product holds.
struct Types {
  DType operands, y, dy, da, db;
};
constexpr DType kF32 = DType::f32, kF16 = DType::f16, kBf16 = DType::bf16;

void check_batched(const Batched& c, const Types& types, bool ta, bool tb, bool add) {
  MatmulLayout layout{.m = c.m,
                      .n = c.n,
                      .k = c.k,
                      .transpose_a = ta,
                      .transpose_b = tb,
                      .batch = broadcast("test", c.batch_a, c.batch_b)};
  set_strides(c.batch_a, layout.batch, layout.stride_a);
  set_strides(c.batch_b, layout.batch, layout.stride_b);
  CAPTURE(to_text(c.batch_a));
  CAPTURE(to_text(c.batch_b));
  CAPTURE(c.m);
  CAPTURE(ta);
  CAPTURE(tb);
  CAPTURE(add);
  CAPTURE(to_text(types.operands));
  const DType dtype = types.operands;
  const Tensor a = short_numbers(ta ? join(c.batch_a, c.k, c.m) : join(c.batch_a, c.m, c.k), dtype, 1);
  const Tensor b = short_numbers(tb ? join(c.batch_b, c.n, c.k) : join(c.batch_b, c.k, c.n), dtype, 2);
  const Tensor dy = short_numbers(join(layout.batch, c.m, c.n), dtype, 3).to(types.dy);
  Tensor y = full(dy.shape(), kNan, types.y);
  Target da(a.shape(), types.da, add), db(b.shape(), types.db, add);
  cpu::matmul_forward(a, b, layout, y);
  cpu::matmul_backward(dy, a, b, layout, da.grad(), db.grad());

  std::vector<double> want_y(static_cast<std::size_t>(y.numel())), want_da(static_cast<std::size_t>(a.numel())),
      want_db(static_cast<std::size_t>(b.numel()));
  for (std::int64_t index = 0; index < layout.batch.numel(); ++index) {
    std::int64_t rest = index, at_a = 0, at_b = 0;
    for (int axis = layout.batch.rank() - 1; axis >= 0; rest /= layout.batch[axis--]) {
      at_a += rest % layout.batch[axis] * layout.stride_a[axis];
      at_b += rest % layout.batch[axis] * layout.stride_b[axis];
    }
    for (std::int64_t i = 0; i < c.m; ++i)
      for (std::int64_t j = 0; j < c.n; ++j)
        for (std::int64_t p = 0; p < c.k; ++p) {
          const std::int64_t ia = at_a * c.m * c.k + (ta ? p * c.m + i : i * c.k + p);
          const std::int64_t ib = at_b * c.k * c.n + (tb ? j * c.k + p : p * c.n + j);
          const std::int64_t iy = (index * c.m + i) * c.n + j;
          want_y[static_cast<std::size_t>(iy)] += a.at(ia) * b.at(ib);
          want_da[static_cast<std::size_t>(ia)] += dy.at(iy) * b.at(ib);
          want_db[static_cast<std::size_t>(ib)] += dy.at(iy) * a.at(ia);
        }
  }
  const double limit = dtype == DType::f64 ? 1e-12 : 2e-5;
  check_close(y, want_y, limit);
  da.check(want_da, limit);
  db.check(want_db, limit);
}

}  // namespace

TEST_CASE("G02 G03 matmul broadcasts and transposes, forward and backward") {
  const Batched cases[] = {
      {{}, {}, 5, 7, 3},
      {{3}, {3}, 4, 6, 5},           // one to one
      {{2, 3}, {}, 4, 9, 5},         // b shared: rows are folded
      {{}, {2, 3}, 4, 9, 5},         // a shared
      {{2, 1}, {1, 3}, 3, 4, 5},     // both broadcast
      {{2, 3, 1}, {3, 4}, 3, 2, 4},  // an axis each
      {{1}, {5}, 1, 4, 1},           // (1) x (5, 4)
      {{}, {}, 4, 4, 1},             // outer product
      {{4}, {4}, 1, 1, 6},           // rows of length one
      {{0}, {}, 3, 4, 5},            // empty batch: db is zero
      {{2}, {2}, 3, 4, 0},           // empty sum
      {{2}, {2}, 0, 4, 3},           // no rows: db is zero
      {{3}, {1}, 40, 50, 60},        //
      {{2}, {2}, 130, 131, 132},     // large enough to be spread one by one
  };
  constexpr DType kF64 = DType::f64;
  // One type for all; b for an f32 Parameter; sums kept in f32.
  const Types types[] = {{kF32, kF32, kF32, kF32, kF32},      {kF64, kF64, kF64, kF64, kF64},
                         {kBf16, kBf16, kBf16, kBf16, kBf16}, {kF16, kF16, kF16, kF16, kF16},
                         {kBf16, kBf16, kBf16, kBf16, kF32},  {kBf16, kF32, kF32, kF32, kBf16},
                         {kF16, kF32, kF32, kF16, kF32}};
  for (const Batched& c : cases)
    for (const Types& t : types)
      for (int flags = 0; flags < 8; ++flags) check_batched(c, t, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0);
}

TEST_CASE("matmul in 16 bits rounds a gradient once, over however many batches it is summed") {
  for (int flags = 0; flags < 8; ++flags) {
    const bool ta = (flags & 1) != 0, tb = (flags & 2) != 0, add = (flags & 4) != 0;
    const MatmulLayout layout{
        .m = 2, .n = 3, .k = 4, .transpose_a = ta, .transpose_b = tb, .batch = {515}, .stride_a = {1}, .stride_b = {0}};
    const Tensor a = full({515, ta ? 4 : 2, ta ? 2 : 4}, 1, kBf16), b = full({tb ? 3 : 4, tb ? 4 : 3}, 1, kBf16),
                 dy = full({515, 2, 3}, 1, kBf16);
    Target db(b.shape(), kBf16, add);
    cpu::matmul_backward(dy, a, b, layout, Grad(), db.grad());
    db.check(std::vector<double>(12, 1030), 1e-9);  // bf16 stands still at 256 + 1
  }
}

TEST_CASE("products in 16 bits do not mix with f64") {
  const Tensor a = zeros({2, 2}, kBf16), bias = zeros({2}, DType::f64);
  Tensor y = zeros({2, 2}, kBf16);
  CHECK_THROWS_WITH(cpu::linear_forward(a, a, bias, Tensor(), y),
                    "matrix product: f16 and bf16 go with f32, not with f64");
}

TEST_CASE("matmul gives the same bits for any number of threads") {
  for (const auto& [size, dtype] : {std::pair(20, kF32), std::pair(140, kF32), std::pair(20, kBf16),
                                    std::pair(141, kBf16), std::pair(20, kF16), std::pair(141, kF16)}) {
    MatmulLayout layout{.m = size, .n = size, .k = size, .batch = {3, 2}, .stride_a = {2, 1}, .stride_b = {0, 1}};
    const Tensor a = filled({3, 2, size, size}, DType::f32, 1).to(dtype),
                 b = filled({2, size, size}, DType::f32, 2).to(dtype);
    Tensor first[3];
    for (int threads : {1, 2, 3, 7}) {
      const ThreadCount scope(threads);
      Tensor y = empty(a.shape(), dtype);
      Target da(a.shape(), dtype, false), db(b.shape(), dtype, false);
      cpu::matmul_forward(a, b, layout, y);
      cpu::matmul_backward(y, a, b, layout, da.grad(), db.grad());
      const Tensor now[3] = {y, da.slot.tensor, db.slot.tensor};
      for (int i = 0; i < 3; ++i) {
        if (!first[i]) first[i] = now[i];
        CHECK(same_bits(first[i], now[i]));
      }
    }
  }
}

TEST_CASE("linear and its gradients agree with plain loops") {
  const struct {
    std::int64_t m, n, k;
  } cases[] = {{6, 4, 5}, {1, 33, 17}, {0, 4, 3}, {3, 4, 0}, {300, 65, 31}, {129, 200, 7}};
  constexpr DType kF64 = DType::f64;
  // One type for all; then as under Autocast, where parameters and their gradients are f32.
  const struct {
    DType dtype, bias, y, dy, dweight;
  } types[] = {{kF32, kF32, kF32, kF32, kF32}, {kF64, kF64, kF64, kF64, kF64},    {kBf16, kBf16, kBf16, kBf16, kBf16},
               {kF16, kF16, kF16, kF16, kF16}, {kBf16, kF32, kBf16, kBf16, kF32}, {kBf16, kF32, kF32, kF32, kF32},
               {kF16, kF32, kF16, kF32, kF32}};
  for (const auto& c : cases)
    for (const auto& [dtype, bias_dtype, y_dtype, dy_dtype, dweight_dtype] : types)
      for (bool add : {false, true}) {
        CAPTURE(c.m);
        CAPTURE(c.n);
        CAPTURE(c.k);
        CAPTURE(add);
        CAPTURE(to_text(dtype));
        const Tensor x = short_numbers({c.m, c.k}, dtype, 1), w = short_numbers({c.k, c.n}, dtype, 2),
                     bias = short_numbers({c.n}, bias_dtype, 3);
        const Tensor dy = short_numbers({c.m, c.n}, dtype, 4).to(dy_dtype);
        Tensor y = full({c.m, c.n}, kNan, y_dtype), y_without_bias = full({c.m, c.n}, kNan, y_dtype);
        Target dx(x.shape(), dtype, add), dw(w.shape(), dweight_dtype, add), dbias(bias.shape(), dweight_dtype, add);
        cpu::linear_forward(x, w, bias, Tensor(), y);
        cpu::linear_forward(x, w, Tensor(), Tensor(), y_without_bias);
        cpu::linear_backward(dy, x, w, dx.grad(), dw.grad(), dbias.grad());
        cpu::linear_backward(dy, x, w, Grad(), Grad(), Grad());

        std::vector<double> product(static_cast<std::size_t>(y.numel())), want(product), want_dx, want_dw, want_dbias;
        want_dx.resize(static_cast<std::size_t>(x.numel()));
        want_dw.resize(static_cast<std::size_t>(w.numel()));
        want_dbias.resize(static_cast<std::size_t>(c.n));
        for (std::int64_t i = 0; i < c.m; ++i)
          for (std::int64_t j = 0; j < c.n; ++j) {
            const std::size_t iy = static_cast<std::size_t>(i * c.n + j);
            for (std::int64_t p = 0; p < c.k; ++p) {
              product[iy] += x.at(i * c.k + p) * w.at(p * c.n + j);
              want_dx[static_cast<std::size_t>(i * c.k + p)] += dy.at(i * c.n + j) * w.at(p * c.n + j);
              want_dw[static_cast<std::size_t>(p * c.n + j)] += dy.at(i * c.n + j) * x.at(i * c.k + p);
            }
            want[iy] = product[iy] + bias.at(j);
            want_dbias[static_cast<std::size_t>(j)] += dy.at(i * c.n + j);
          }
        const double limit = dtype == DType::f64 ? 1e-12 : 5e-5;
        check_close(y, want, limit);
        check_close(y_without_bias, product, limit);
        dx.check(want_dx, limit);
        dw.check(want_dw, limit);
        dbias.check(want_dbias, limit);
      }
}

TEST_CASE("linear gives the same bits for any number of threads") {
  const Tensor x = filled({700, 100}, DType::f32, 1), w = filled({100, 333}, DType::f32, 2),
               bias = filled({333}, DType::f32, 3);
  Tensor first[4];
  for (int threads : {1, 2, 3, 7}) {
    const ThreadCount scope(threads);
    Tensor y = empty({700, 333});
    Target dx(x.shape(), DType::f32, false), dw(w.shape(), DType::f32, false), dbias(bias.shape(), DType::f32, false);
    cpu::linear_forward(x, w, bias, Tensor(), y);
    cpu::linear_backward(y, x, w, dx.grad(), dw.grad(), dbias.grad());
    const Tensor now[4] = {y, dx.slot.tensor, dw.slot.tensor, dbias.slot.tensor};
    for (int i = 0; i < 4; ++i) {
      if (!first[i]) first[i] = now[i];
      CHECK(same_bits(first[i], now[i]));
    }
  }
}

TEST_CASE("F12 linear on views at odd offsets equals the packed result") {
  const std::int64_t rows = 19, in = 21, out = 37;
  const Tensor x = filled({rows, in}, DType::f32, 1), w = filled({in, out}, DType::f32, 2);
  Tensor want = empty({rows, out});
  cpu::linear_forward(x, w, Tensor(), Tensor(), want);
  for (std::int64_t offset : {1, 2, 3}) {
    auto shifted = [&](const Tensor& t) {
      Tensor view = zeros({t.numel() + offset}).rows(offset, t.numel()).reshape(t.shape());
      view.copy_from(t);
      return view;
    };
    Tensor y = shifted(full({rows, out}, kNan));
    cpu::linear_forward(shifted(x), shifted(w), Tensor(), Tensor(), y);
    CHECK(same_bits(y, want));
  }
}
