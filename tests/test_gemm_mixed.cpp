// gemm on arrays of f32, f16 and bf16 against plain loops in double. Most operands are small multiples of 1/2, whose
// sums are exact in fp32: then c has one right value to the last bit, the exact sum rounded once.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/kernels/gemm_mixed.h"
#include "core/parallel.h"
#include "core/tensor.h"

using namespace tapestry;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32};

// What element i of the matrix number `seed` holds.
using Values = double (*)(std::int64_t i, std::uint64_t seed);
std::uint64_t random_bits(std::int64_t i, std::uint64_t seed) {
  std::uint64_t x = (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  return x >> 40;
}
double halves(std::int64_t i, std::uint64_t seed) {  // -2, -1.5, ... 2
  return static_cast<double>(random_bits(i, seed) % 9) / 2 - 2;
}
double real(std::int64_t i, std::uint64_t seed) {  // in [-1, 1)
  return static_cast<double>(random_bits(i, seed)) * 0x1p-23 - 1;
}
double one(std::int64_t, std::uint64_t) { return 1; }
double nan(std::int64_t, std::uint64_t) { return kNan; }

double rounded(DType dtype, double x) {
  if (dtype == DType::f32) return static_cast<float>(x);
  const float f = static_cast<float>(x);
  return dtype == DType::bf16 ? static_cast<float>(BFloat16(f)) : static_cast<float>(Half(f));
}

struct ThreadCount {
  explicit ThreadCount(int count) { set_num_threads(count); }
  ~ThreadCount() { set_num_threads(0); }
};

struct Case {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  DType a = DType::bf16, b = DType::bf16, c = DType::bf16;
  bool add = false, bias = false, residual = false, gelu = false;
  DType extra = DType::f32;              // of bias, residual and gelu
  std::int64_t padding = 0, offset = 0;  // elements between rows and before the first
};

// A stored matrix; what lies around it and between its rows is `outside`.
struct Matrix {
  Matrix(DType dtype, std::int64_t rows, std::int64_t columns, const Case& c, double outside, Values values,
         std::uint64_t seed)
      : stride(columns + c.padding), offset(c.offset) {
    Tensor wide = full({offset + rows * stride + 1}, outside);
    float* first = wide.mutable_data<float>() + offset;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        first[i * stride + j] = static_cast<float>(values(i * columns + j, seed));
    data = wide.to(dtype);
  }
  double at(std::int64_t i, std::int64_t j) const { return data.at(offset + i * stride + j); }
  void set(std::int64_t i, std::int64_t j, double x) { data.rows(offset + i * stride + j, 1).fill(x); }
  ConstFloats in() const { return ConstFloats{data.raw_data(), data.dtype()} + offset; }
  Floats out() { return Floats{data.mutable_raw_data(), data.dtype()} + offset; }

  std::int64_t stride, offset;
  Tensor data;
};

struct Problem {
  // What lies outside of operands is NaN, so reading it shows; c and gelu have a canary there, and NaN inside.
  explicit Problem(const Case& c_, Values values = halves)
      : at(c_),
        a(at.a, at.transpose_a ? at.k : at.m, at.transpose_a ? at.m : at.k, at, kNan, values, 1),
        b(at.b, at.transpose_b ? at.n : at.k, at.transpose_b ? at.k : at.n, at, kNan, values, 2),
        c(at.c, at.m, at.n, at, 1234.5, at.add ? values : nan, 3),
        bias(at.extra, 1, at.n, at, kNan, values, 4),
        residual(at.extra, at.m, at.n, at, kNan, values, 5),
        gelu(at.extra, at.m, at.n, at, 1234.5, nan, 6),
        before(c),
        gelu_before(gelu) {
    before.data = c.data.clone();
    gelu_before.data = gelu.data.clone();
  }
  MixedGemm gemm() {
    return {.m = at.m,
            .n = at.n,
            .k = at.k,
            .transpose_a = at.transpose_a,
            .transpose_b = at.transpose_b,
            .a = a.in(),
            .b = b.in(),
            .c = c.out(),
            .lda = a.stride,
            .ldb = b.stride,
            .ldc = c.stride,
            .add = at.add,
            .bias = at.bias ? bias.in() : ConstFloats{},
            .residual = at.residual ? residual.in() : ConstFloats{},
            .gelu = at.gelu ? gelu.out() : Floats{}};
  }
  // The exact c before it is rounded, and the sum of the magnitudes of all terms.
  struct Exact {
    double sum = 0, magnitude = 0;
  };
  Exact exact(std::int64_t i, std::int64_t j) const {
    Exact e;
    auto add = [&](double x) { e.sum += x, e.magnitude += std::abs(x); };
    if (at.add) add(before.at(i, j));
    if (at.bias) add(bias.at(0, j));
    if (at.residual) add(residual.at(i, j));
    for (std::int64_t p = 0; p < at.k; ++p)
      add((at.transpose_a ? a.at(p, i) : a.at(i, p)) * (at.transpose_b ? b.at(j, p) : b.at(p, j)));
    return e;
  }
  // How many elements of c differ from the exact sum rounded once by more than `tolerance` of its terms, or of gelu(c)
  // from that of c; and whether anything outside of them was written.
  int wrong(double tolerance = 0) {
    int count = 0;
    for (std::int64_t i = 0; i < at.m; ++i)
      for (std::int64_t j = 0; j < at.n; ++j) {
        const Exact e = exact(i, j);
        const double x = c.at(i, j), slack = tolerance * e.magnitude;
        const double low = rounded(at.c, e.sum - slack), high = rounded(at.c, e.sum + slack);
        count += !(low <= x && x <= high);
        if (at.gelu) {
          const double y = x * 0.5 * std::erfc(-x / std::sqrt(2)), got = gelu.at(i, j);
          const double unit = at.extra == DType::f32 ? 1e-6 : at.extra == DType::f16 ? 0x1p-11 : 0x1p-8;
          count += !(std::abs(got - y) <= unit * std::abs(y) + 1e-6);
        }
        c.set(i, j, before.at(i, j));
        if (at.gelu) gelu.set(i, j, gelu_before.at(i, j));
      }
    const auto same = [](const Matrix& x, const Matrix& y) {
      return std::memcmp(x.data.raw_data(), y.data.raw_data(), static_cast<std::size_t>(x.data.bytes())) == 0;
    };
    return count + !same(c, before) + !same(gelu, gelu_before);
  }

  Case at;
  Matrix a, b, c, bias, residual, gelu, before, gelu_before;
};

void check(const Case& c, Values values = halves, double tolerance = 0) {
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(c.transpose_a);
  CAPTURE(c.transpose_b);
  CAPTURE(to_text(c.a));
  CAPTURE(to_text(c.b));
  CAPTURE(to_text(c.c));
  CAPTURE(to_text(c.extra));
  CAPTURE(c.add);
  CAPTURE(c.bias);
  CAPTURE(c.residual);
  CAPTURE(c.gelu);
  Problem serial(c, values), parallel(c, values);
  cpu::gemm_serial(serial.gemm());
  cpu::gemm(parallel.gemm());
  CHECK(same_bits(serial.c.data, parallel.c.data));
  CHECK(same_bits(serial.gelu.data, parallel.gelu.data));
  CHECK(serial.wrong(tolerance) == 0);
}

// Every transposition of one size; types and the other options take turns.
void check_all(std::int64_t m, std::int64_t n, std::int64_t k, int& turn) {
  for (int transposes = 0; transposes < 4; ++transposes, ++turn) {
    Case c{m, n, k, (transposes & 1) != 0, (transposes & 2) != 0};
    c.a = kTypes[turn % 3], c.b = kTypes[turn / 3 % 3], c.c = kTypes[turn / 9 % 3], c.extra = kTypes[turn / 2 % 3];
    c.add = turn % 4 == 0, c.residual = turn % 4 == 1, c.bias = turn % 3 != 0, c.gelu = turn % 5 < 2;
    c.padding = turn % 7 < 3 ? turn % 7 : 0, c.offset = turn % 5 % 4;
    check(c);
  }
}

}  // namespace

TEST_CASE("the mixed gemm rounds the exact sum once, for every kind of size and types") {
  int turn = 0;
  for (std::int64_t m = 0; m < 4; ++m)
    for (std::int64_t n = 0; n < 4; ++n)
      for (std::int64_t k = 0; k < 4; ++k) check_all(m, n, k, turn);
  const std::int64_t sizes[] = {1, 2, 7, 12, 13, 15, 16, 17, 31, 32, 33, 48, 65, 100};
  int pick = 0;
  for (std::int64_t m : sizes)
    for (std::int64_t n : sizes)
      for (std::int64_t k : sizes)
        if (pick++ % 11 == 0) check_all(m, n, k, turn);
}

TEST_CASE("the mixed gemm rounds once across several panels and blocks") {
  int turn = 0;
  for (int round = 0; round < 5; ++round, ++turn) {  // every size meets other types each time
    check_all(9, 33, 1601, turn);
    check_all(1, 777, 401, turn);
    check_all(25, 131, 1544, turn);
  }
  check_all(1, 2500, 77, turn);
  check_all(1031, 34, 50, turn);
  check_all(30, 650, 900, turn);
  check_all(14, 20, 2048, turn);  // rows of a 4 KiB apart
}

TEST_CASE("the mixed gemm on real numbers stays within the rounding of fp32 sums") {
  for (DType dtype : {DType::bf16, DType::f16})
    for (int transposes = 0; transposes < 4; ++transposes)
      for (std::int64_t m : {1, 21}) {
        Case c{m, 37, 1300, (transposes & 1) != 0, (transposes & 2) != 0, dtype, dtype, DType::f32};
        check(c, real, 1e-5);
        c.c = dtype;
        c.bias = c.residual = true;
        check(c, real, 1e-5);
      }
}

TEST_CASE("f32 beside bf16 is rounded to bf16 at most") {
  for (const auto& [a, b] : {std::pair(DType::f32, DType::bf16), std::pair(DType::bf16, DType::f32)})
    for (int transposes = 0; transposes < 4; ++transposes)
      check({21, 37, 301, (transposes & 1) != 0, (transposes & 2) != 0, a, b, DType::f32}, real, 0x1p-9 + 1e-6);
}

TEST_CASE("the mixed gemm gives the same bits for any number of threads") {
  for (const Case& shape :
       {Case{300, 200, 500}, Case{64, 1500, 90}, Case{1, 3001, 400}, Case{900, 65, 129}, Case{129, 31, 2000}})
    for (int turn = 0; turn < 8; ++turn) {
      Case c = shape;
      c.transpose_a = (turn & 1) != 0;
      c.transpose_b = (turn & 2) != 0;
      c.bias = c.residual = true;
      c.a = turn < 4 ? DType::bf16 : DType::f16;
      c.b = turn % 3 == 0 ? DType::f32 : c.a;
      c.c = turn % 2 == 0 ? c.a : DType::f32;
      Problem alone(c, real);
      cpu::gemm_serial(alone.gemm());
      for (int threads : {1, 2, 3, 7}) {
        const ThreadCount scope(threads);
        Problem many(c, real);
        cpu::gemm(many.gemm());
        CAPTURE(threads);
        CAPTURE(c.m);
        CAPTURE(turn);
        CHECK(same_bits(many.c.data, alone.c.data));
      }
    }
}

TEST_CASE("the mixed gemm passes on NaN and infinity, and to nobody else") {
  for (DType dtype : {DType::bf16, DType::f16})
    for (std::int64_t m : {1, 3, 20})
      for (std::int64_t n : {5, 48, 67})
        for (std::int64_t k : {9, 800})
          for (int transposes = 0; transposes < 4; ++transposes) {
            const Case c{m, n, k, (transposes & 1) != 0, (transposes & 2) != 0, dtype, dtype, dtype};
            CAPTURE(m);
            CAPTURE(n);
            Problem p(c);
            const std::int64_t row = m / 2, column = n - 1, term = k - 2;
            auto set_a = [&](std::int64_t i, std::int64_t q, double x) {
              c.transpose_a ? p.a.set(q, i, x) : p.a.set(i, q, x);
            };
            for (std::int64_t i = 0; i < m; ++i) set_a(i, term, 1);
            for (std::int64_t q = 0; q < k; ++q) set_a(row, q, 0);
            c.transpose_b ? p.b.set(column, term, kInf) : p.b.set(term, column, kInf);
            if (m > 1) set_a(m - 1, 0, kNan);
            cpu::gemm(p.gemm());
            int wrong = 0;
            for (std::int64_t i = 0; i < m; ++i)
              for (std::int64_t j = 0; j < n; ++j) {
                const double x = p.c.at(i, j);
                if (m > 1 && i == m - 1)
                  wrong += !std::isnan(x);
                else if (j == column)
                  wrong += i == row ? !std::isnan(x) : !std::isinf(x);
                else
                  wrong += !std::isfinite(x);
              }
            CHECK(wrong == 0);
          }
}

TEST_CASE("f16: a sum beyond 65504 that comes back is finite, one that stays is infinite") {
  for (std::int64_t m : {1, 5})
    for (std::int64_t k : {8, 1400}) {
      Problem p({m, 40, k, false, false, DType::f16, DType::f16, DType::f16}, one);
      for (std::int64_t q = 0; q < k; ++q)
        for (std::int64_t i = 0; i < m; ++i) p.a.set(i, q, q < k / 2 ? 60000 : q < k - 1 ? -60000 : -59968);
      cpu::gemm(p.gemm());
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < 40; ++j) REQUIRE(p.c.at(i, j) == 32);
      for (std::int64_t i = 0; i < m; ++i) p.a.set(i, k - 1, 60000);
      cpu::gemm(p.gemm());
      REQUIRE(p.c.at(m - 1, 39) == kInf);
    }
}

TEST_CASE("bf16: a sum of many blocks of terms is rounded once") {
  Problem p({3, 70, 5003, false, true, DType::bf16, DType::bf16, DType::bf16}, one);
  cpu::gemm(p.gemm());  // rounded block by block, or kept in bf16, it would stand still or drift
  CHECK(p.c.at(2, 69) == rounded(DType::bf16, 5003));
  CHECK(p.wrong() == 0);
}

TEST_CASE("subnormal results keep their bits") {
  for (std::int64_t k : {0, 6}) {
    Case c{13, 33, k};
    c.c = c.extra = DType::bf16;
    c.residual = true;
    Problem p(c, [](std::int64_t i, std::uint64_t seed) {
      return seed == 5 ? std::ldexp(static_cast<double>(i % 100), -133) : 0.0;
    });
    cpu::gemm(p.gemm());
    CHECK(p.c.at(0, 3) == std::ldexp(3.0, -133));
    CHECK(p.wrong() == 0);
  }
}
