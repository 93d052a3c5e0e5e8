// Lion, LAMB, Adafactor and Muon against their papers' formulas, written out in double.
#include <cmath>

#include "tests/optimizer_kinds.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

using Matrix = std::vector<double>;  // row-major

double norm(const Matrix& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

// Steps `optimizer` and the formula side by side on parameters of `shapes`; formula(i, t, p, g) updates p.
using Formula = std::function<void(std::size_t, int, Matrix&, const Matrix&)>;
void check_formula(const Make& make_optimizer, const std::vector<Shape>& shapes, double grad_scale,
                   const Formula& formula) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    CAPTURE(dtype);
    std::vector<Parameter> list = make_parameters(shapes, dtype);
    std::vector<Matrix> expected;
    auto elements = [](const Tensor& t) {
      Matrix x;
      for (std::int64_t i = 0; i < t.numel(); ++i) x.push_back(t.at(i));
      return x;
    };
    for (const Parameter& p : list) expected.push_back(elements(p.value()));
    const auto optimizer = make_optimizer(one_group(list));
    for (int t = 1; t <= 6; ++t) {
      random_grads(list, static_cast<std::uint64_t>(t));
      for (std::size_t i = 0; i < list.size(); ++i) {
        Tensor scaled = list[i].grad().clone();
        for (std::int64_t j = 0; j < scaled.numel(); ++j) {
          if (dtype == DType::f64)
            scaled.mutable_data<double>()[j] *= grad_scale;
          else
            scaled.mutable_data<float>()[j] *= static_cast<float>(grad_scale);
        }
        set_grad(list[i], scaled);
        formula(i, t, expected[i], elements(list[i].grad()));
      }
      optimizer->step({.lr = 0.02});
    }
    double worst = 0;
    for (std::size_t i = 0; i < list.size(); ++i)
      for (std::size_t j = 0; j < expected[i].size(); ++j)
        worst = std::max(worst, std::abs(list[i].value().at(static_cast<std::int64_t>(j)) - expected[i][j]));
    CHECK(worst < (dtype == DType::f64 ? 1e-12 : 2e-6));
  }
}

Matrix product(const Matrix& a, const Matrix& b, std::size_t m, std::size_t k, std::size_t n) {
  Matrix c(m * n);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t p = 0; p < k; ++p)
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + p] * b[p * n + j];
  return c;
}
Matrix transposed(const Matrix& x, std::size_t rows, std::size_t columns) {
  Matrix y(x.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) y[j * rows + i] = x[i * columns + j];
  return y;
}

// Jordan's zeropower_via_newtonschulz5, line by line.
Matrix newton_schulz(Matrix x, std::size_t rows, std::size_t columns) {
  if (rows > columns) return transposed(newton_schulz(transposed(x, rows, columns), columns, rows), columns, rows);
  const double length = std::max(norm(x), 1e-7);
  for (double& v : x) v /= length;
  for (int i = 0; i < 5; ++i) {
    const Matrix a = product(x, transposed(x, rows, columns), rows, columns, rows);
    Matrix b = product(a, a, rows, rows, rows);
    for (std::size_t j = 0; j < b.size(); ++j) b[j] = -4.7750 * a[j] + 2.0315 * b[j];
    const Matrix bx = product(b, x, rows, rows, columns);
    for (std::size_t j = 0; j < x.size(); ++j) x[j] = 3.4445 * x[j] + bx[j];
  }
  return x;
}

}  // namespace

TEST_CASE("Lion equals its formula in double") {
  std::vector<Matrix> m(2);
  check_formula(make<Lion>(LionOptions{.weight_decay = 0.3}), {{31}, {17, 23}}, 1,
                [&](std::size_t i, int t, Matrix& p, const Matrix& g) {
                  if (t == 1) m[i].assign(p.size(), 0);
                  for (std::size_t j = 0; j < p.size(); ++j) {
                    const double c = 0.9 * m[i][j] + 0.1 * g[j];
                    p[j] -= 0.02 * ((c > 0) - (c < 0) + 0.3 * p[j]);
                    m[i][j] = 0.99 * m[i][j] + 0.01 * g[j];
                  }
                });
  // A direction of 0 moves nothing.
  std::vector<Parameter> list = filled({1});
  Lion lion(one_group(list), {.weight_decay = 0});
  set_grad(list[0], 0);
  lion.step({.lr = 0.1});
  CHECK(list[0].value().item() == 1);
}

TEST_CASE("LAMB equals its formula in double") {
  std::vector<Matrix> m(3), v(3);
  check_formula(make<Lamb>(LambOptions{.beta2 = 0.99, .weight_decay = 0.1}), {{31}, {129, 257}, {5, 7}}, 1,
                [&](std::size_t i, int t, Matrix& p, const Matrix& g) {
                  if (t == 1) m[i].assign(p.size(), 0), v[i].assign(p.size(), 0);
                  Matrix u(p.size());
                  for (std::size_t j = 0; j < p.size(); ++j) {
                    m[i][j] = 0.9 * m[i][j] + 0.1 * g[j];
                    v[i][j] = 0.99 * v[i][j] + 0.01 * g[j] * g[j];
                    const double mhat = m[i][j] / (1 - std::pow(0.9, t)), vhat = v[i][j] / (1 - std::pow(0.99, t));
                    u[j] = mhat / (std::sqrt(vhat) + 1e-6) + 0.1 * p[j];
                  }
                  const double ratio = norm(p) / norm(u);
                  for (std::size_t j = 0; j < p.size(); ++j) p[j] -= 0.02 * ratio * u[j];
                });
  SUBCASE("a norm of 0 leaves the ratio at 1") {
    std::vector<Parameter> list = filled({0, 2});
    Lamb lamb(one_group(list), {.weight_decay = 0});
    set_grad(list[0], 1);
    set_grad(list[1], 0);
    lamb.step({.lr = 0.5});
    CHECK(list[0].value().item() == doctest::Approx(-0.5).epsilon(1e-5));
    CHECK(list[1].value().item() == 2);
  }
}

TEST_CASE("Adafactor equals its formula in double") {
  const std::vector<Shape> shapes = {{31}, {37, 131}, {3, 5, 4}};
  std::vector<Matrix> rows(3), columns(3), v(3);
  for (const bool paper : {true, false}) {
    const AdafactorOptions options{
        .eps1 = 1e-4, .clip = paper ? 1 : 0.5, .relative_step = paper, .scale_by_value = paper};
    check_formula(make<Adafactor>(options), shapes, 0.01, [&](std::size_t i, int t, Matrix& p, const Matrix& g) {
      const Shape& s = shapes[i];
      const bool vector = s.rank() == 1;
      const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
      const std::size_t c = size(s.back()), r = vector ? 1 : size(s[-2]), batch = p.size() / (r * c);
      if (t == 1) rows[i].assign(batch * r, 0), columns[i].assign(batch * c, 0), v[i].assign(p.size(), 0);
      const double beta2 = 1 - std::pow(t, -0.8);
      Matrix u(p.size());
      for (std::size_t b = 0; b < batch; ++b) {
        Matrix row(r), column(c);
        for (std::size_t j = 0; j < r; ++j)
          for (std::size_t k = 0; k < c; ++k) {
            const double square = g[(b * r + j) * c + k] * g[(b * r + j) * c + k] + 1e-4;
            row[j] += square;
            column[k] += square;
          }
        double total = 0;
        for (std::size_t j = 0; j < r; ++j) {
          double& x = rows[i][b * r + j];
          x = beta2 * x + (1 - beta2) * row[j] / static_cast<double>(c);
          total += x;
        }
        for (std::size_t k = 0; k < c; ++k) {
          double& x = columns[i][b * c + k];
          x = beta2 * x + (1 - beta2) * column[k] / static_cast<double>(r);
        }
        for (std::size_t j = 0; j < r; ++j)
          for (std::size_t k = 0; k < c; ++k) {
            const std::size_t at = (b * r + j) * c + k;
            v[i][at] = vector ? beta2 * v[i][at] + (1 - beta2) * (g[at] * g[at] + 1e-4)
                              : rows[i][b * r + j] * columns[i][b * c + k] / (total / static_cast<double>(r));
            u[at] = g[at] / std::sqrt(v[i][at]);
          }
      }
      const double root = std::sqrt(static_cast<double>(p.size()));
      const double clipped = std::max(1.0, norm(u) / root / options.clip);
      const double alpha =
          (paper ? std::min(0.02, 1 / std::sqrt(t)) : 0.02) * (paper ? std::max(1e-3, norm(p) / root) : 1);
      for (std::size_t j = 0; j < p.size(); ++j) p[j] -= alpha * u[j] / clipped;
    });
  }
  SUBCASE("its moments are small, and a zero gradient changes nothing") {
    std::vector<Parameter> list = make_parameters({{40, 50}, {7}});
    Adafactor optimizer(one_group(list));
    std::vector<std::string> names;
    for (const auto& s : optimizer.state()) names.push_back(text_of(s.name, " ", s.tensor.shape()));
    CHECK(names == std::vector<std::string>{"rows/p0 [40, 1]", "columns/p0 [1, 50]", "v/p1 [7]"});
    const std::vector<double> before = values_of(list);
    for (Parameter& p : list) set_grad(p, 0);
    optimizer.step({.lr = 0.1});
    CHECK(values_of(list) == before);
  }
}

TEST_CASE("Muon equals its formula in double, AdamW updates the others") {
  const std::vector<Shape> shapes = {{19, 19}, {11, 40}, {40, 11}, {13}};
  std::vector<Matrix> m(4), v(4);
  check_formula(make_muon({.scale = MuonScale::original}), shapes, 1,
                [&](std::size_t i, int t, Matrix& p, const Matrix& g) {
                  if (t == 1) m[i].assign(p.size(), 0), v[i].assign(p.size(), 0);
                  if (shapes[i].rank() == 1) {
                    for (std::size_t j = 0; j < p.size(); ++j) {
                      m[i][j] = 0.9 * m[i][j] + 0.1 * g[j];
                      v[i][j] = 0.95 * v[i][j] + 0.05 * g[j] * g[j];
                      const double mhat = m[i][j] / (1 - std::pow(0.9, t)), vhat = v[i][j] / (1 - std::pow(0.95, t));
                      p[j] = p[j] * (1 - 0.02 * 0.1) - 0.02 * mhat / (std::sqrt(vhat) + 1e-8);
                    }
                    return;
                  }
                  const auto in = static_cast<std::size_t>(shapes[i][0]), out = static_cast<std::size_t>(shapes[i][1]);
                  Matrix u(p.size());
                  for (std::size_t j = 0; j < p.size(); ++j) {
                    m[i][j] = 0.95 * m[i][j] + g[j];
                    u[j] = g[j] + 0.95 * m[i][j];
                  }
                  u = newton_schulz(u, in, out);
                  const double scale = std::sqrt(std::max(1.0, static_cast<double>(out) / static_cast<double>(in)));
                  for (std::size_t j = 0; j < p.size(); ++j) p[j] = p[j] * (1 - 0.02 * 0.1) - 0.02 * scale * u[j];
                });
  SUBCASE("only matrices keep one moment") {
    std::vector<Parameter> list = make_parameters({{4, 5}, {6, 2}, {3}});
    std::vector<NamedParameter> named = one_group(list)[0].parameters;
    Muon optimizer(named, {}, [](const NamedParameter& p) { return p.name == "p1"; });
    std::vector<std::string> names;
    for (const auto& s : optimizer.state()) names.push_back(s.name);
    CHECK(names == std::vector<std::string>{"m/p0", "m/p1", "m/p2", "v/p1", "v/p2"});
  }
  SUBCASE("what is no matrix is refused") {
    std::vector<Parameter> list = make_parameters({{4, 5}, {3}});
    CHECK_THROWS_WITH_AS(Muon(one_group(list), {}, {}),
                         "Muon: p1 is [3], but only matrices can be made orthogonal; list it among the others, which "
                         "AdamW updates",
                         Error);
    CHECK_FALSE(list[0].packed());
  }
}
