// gemm against plain loops in double: every size, transposition, option and number of threads.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/gemm.h"
#include "core/parallel.h"

using namespace tapestry;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

// A number in [-1, 1) that depends on its arguments only.
double value(std::int64_t i, std::uint64_t seed) {
  std::uint64_t x = (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  return static_cast<double>(x >> 40) * 0x1p-23 - 1;
}

// Rounding of a sum of k products of numbers below one.
template <class T>
double tolerance(std::int64_t k) {
  return sizeof(T) == 8 ? 1e-12 : 1e-6 * (2 + static_cast<double>(k) / 8);
}

struct ThreadCount {
  explicit ThreadCount(int count) { set_num_threads(count); }
  ~ThreadCount() { set_num_threads(0); }
};

struct Case {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, add = false, bias = false;
  std::int64_t padding = 0, offset = 0;  // elements between rows and before the first
};

// A stored matrix with `padding` elements of `outside` between its rows.
template <class T>
struct Matrix {
  Matrix(std::int64_t rows_, std::int64_t columns_, const Case& c, std::uint64_t seed, double outside)
      : rows(rows_), columns(columns_), stride(columns_ + c.padding), offset(c.offset) {
    data.assign(static_cast<std::size_t>(offset + rows * stride + 1), static_cast<T>(outside));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) at(i, j) = static_cast<T>(value(i * columns + j, seed));
  }
  T& at(std::int64_t i, std::int64_t j) { return data[static_cast<std::size_t>(offset + i * stride + j)]; }
  T* begin() { return data.data() + offset; }
  std::int64_t rows, columns, stride, offset;
  std::vector<T> data;
};

template <class T>
struct Problem {
  // What lies outside of a and b is NaN, so reading it shows; c has a canary there, and inside NaN unless it is read.
  explicit Problem(const Case& c_)
      : at(c_),
        a(at.transpose_a ? at.k : at.m, at.transpose_a ? at.m : at.k, at, 1, kNan),
        b(at.transpose_b ? at.n : at.k, at.transpose_b ? at.k : at.n, at, 2, kNan),
        c(at.m, at.n, at, 3, 1234.5),
        bias(1, at.n, at, 4, kNan),
        before(c) {
    if (!at.add)
      for (std::int64_t i = 0; i < at.m; ++i)
        for (std::int64_t j = 0; j < at.n; ++j) c.at(i, j) = static_cast<T>(kNan);
  }
  Gemm<T> gemm() {
    return {at.m,
            at.n,
            at.k,
            at.transpose_a,
            at.transpose_b,
            a.begin(),
            b.begin(),
            c.begin(),
            a.stride,
            b.stride,
            c.stride,
            at.add,
            at.bias ? bias.begin() : nullptr};
  }
  // The largest difference to plain loops, NaN if there is one; infinite if anything outside of c was written.
  double error() {
    double worst = 0;
    for (std::int64_t i = 0; i < at.m; ++i)
      for (std::int64_t j = 0; j < at.n; ++j) {
        double sum = (at.add ? before.at(i, j) : 0) + (at.bias ? bias.at(0, j) : 0);
        for (std::int64_t p = 0; p < at.k; ++p)
          sum += static_cast<double>(at.transpose_a ? a.at(p, i) : a.at(i, p)) *
                 (at.transpose_b ? b.at(j, p) : b.at(p, j));
        const double difference = std::abs(sum - c.at(i, j));
        if (!(difference <= worst)) worst = difference;
        c.at(i, j) = before.at(i, j);
      }
    return c.data == before.data ? worst : kInf;
  }

  Case at;
  Matrix<T> a, b, c, bias, before;
};

template <class T>
void check(const Case& c) {
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(c.transpose_a);
  CAPTURE(c.transpose_b);
  CAPTURE(c.add);
  CAPTURE(c.bias);
  CAPTURE(c.padding);
  CAPTURE(c.offset);
  Problem<T> serial(c), parallel(c);
  cpu::gemm_serial(serial.gemm());
  cpu::gemm(parallel.gemm());
  const bool same = serial.c.data == parallel.c.data;
  CHECK((same || c.m * c.n == 0));
  CHECK(serial.error() <= tolerance<T>(c.k));
}

// Every transposition of one size; the other options take turns.
void check_all(std::int64_t m, std::int64_t n, std::int64_t k, int& turn) {
  for (int transposes = 0; transposes < 4; ++transposes, ++turn) {
    const Case c{m,
                 n,
                 k,
                 (transposes & 1) != 0,
                 (transposes & 2) != 0,
                 turn % 3 == 0,
                 turn % 2 == 0,
                 turn % 5 == 0 ? 3 : 0,
                 turn % 7 % 4};
    check<float>(c);
    check<double>(c);
  }
}

}  // namespace

TEST_CASE("gemm agrees with plain loops for every kind of size") {
  int turn = 0;
  for (std::int64_t m = 0; m < 4; ++m)
    for (std::int64_t n = 0; n < 4; ++n)
      for (std::int64_t k = 0; k < 4; ++k) check_all(m, n, k, turn);
  const std::int64_t sizes[] = {1, 5, 7, 8, 15, 16, 17, 31, 33, 63, 65, 100, 129};
  int pick = 0;
  for (std::int64_t m : sizes)
    for (std::int64_t n : sizes)
      for (std::int64_t k : sizes)
        if (pick++ % 7 == 0) check_all(m, n, k, turn);
}

TEST_CASE("gemm agrees with plain loops across several panels and blocks") {
  int turn = 0;
  check_all(257, 509, 383, turn);
  check_all(9, 33, 1601, turn);
  check_all(1, 777, 901, turn);
  check_all(70, 1201, 19, turn);
  check_all(777, 1, 130, turn);
}

TEST_CASE_TEMPLATE("gemm gives the same bits for any number of threads", T, float, double) {
  for (const Case& shape : {Case{300, 200, 500}, Case{64, 1500, 90}, Case{1, 3001, 400}, Case{900, 65, 128},
                            Case{13, 17, 19}, Case{129, 31, 2000}})
    for (int transposes = 0; transposes < 4; ++transposes) {
      Case c = shape;
      c.transpose_a = (transposes & 1) != 0;
      c.transpose_b = (transposes & 2) != 0;
      c.bias = true;
      Problem<T> one(c);
      cpu::gemm_serial(one.gemm());
      for (int threads : {1, 2, 3, 7}) {
        const ThreadCount scope(threads);
        Problem<T> many(c);
        cpu::gemm(many.gemm());
        CAPTURE(threads);
        CAPTURE(c.m);
        CHECK(many.c.data == one.c.data);
      }
    }
}

TEST_CASE_TEMPLATE("gemm passes on NaN and infinity, and to nobody else", T, float, double) {
  for (std::int64_t m : {1, 3, 20})
    for (std::int64_t n : {5, 48, 67})
      for (std::int64_t k : {9, 800})
        for (int transposes = 0; transposes < 4; ++transposes) {
          const Case c{m, n, k, (transposes & 1) != 0, (transposes & 2) != 0};
          CAPTURE(m);
          CAPTURE(n);
          Problem<T> p(c);
          const std::int64_t row = m / 2, column = n - 1, term = k - 2;
          auto a = [&](std::int64_t i, std::int64_t q) -> T& { return c.transpose_a ? p.a.at(q, i) : p.a.at(i, q); };
          auto b = [&](std::int64_t q, std::int64_t j) -> T& { return c.transpose_b ? p.b.at(j, q) : p.b.at(q, j); };
          for (std::int64_t q = 0; q < k; ++q) a(row, q) = 0;
          b(term, column) = static_cast<T>(kInf);
          if (m > 1) a(m - 1, 0) = static_cast<T>(kNan);
          cpu::gemm(p.gemm());
          int wrong = 0;
          for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
              const T x = p.c.at(i, j);
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

TEST_CASE("O15 the identity times A is A to the last bit") {
  const std::int64_t n = 50;
  std::vector<float> eye(n * n), a(n * n), c(n * n);
  for (std::int64_t i = 0; i < n * n; ++i) {
    eye[static_cast<std::size_t>(i)] = i % (n + 1) == 0;
    a[static_cast<std::size_t>(i)] = 1 + 0x1p-13f + static_cast<float>(i) * 0x1p-23f;
  }
  cpu::gemm<float>(
      {.m = n, .n = n, .k = n, .a = eye.data(), .b = a.data(), .c = c.data(), .lda = n, .ldb = n, .ldc = n});
  CHECK(c == a);
  cpu::gemm<float>(
      {.m = 1, .n = n, .k = n, .a = eye.data(), .b = a.data(), .c = c.data(), .lda = n, .ldb = n, .ldc = n});
  CHECK(std::equal(a.begin(), a.begin() + n, c.begin()));
}
