// Every optimizer: PyTorch's traces, the papers' formulas written out in double, resuming, bits for any thread count,
// allocations, training, wrong options. What they share (norm, clipping, skipping, packing) is in test_optimizer.cpp.
#include "optim/optimizers.h"

#include <cmath>
#include <functional>

#include "autograd/ops.h"
#include "core/io/hdf5_file.h"
#include "core/parallel.h"
#include "optim/ema.h"
#include "optim/training_state.h"
#include "tests/allocation_counter.h"
#include "tests/error_message.h"
#include "tests/fault_injection.h"
#include "tests/optimizer_testing.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

using Groups = std::vector<ParameterGroup>;
using Make = std::function<std::unique_ptr<Optimizer>(Groups)>;

template <class O, class Options>
Make make(const Options& options) {
  return [options](Groups groups) { return std::make_unique<O>(std::move(groups), options); };
}

// Matrices to Muon's update, the others to AdamW's.
Make make_muon(const MuonOptions& options) {
  return [options](Groups groups) {
    ParameterGroup matrices, others;
    for (NamedParameter& p : groups[0].parameters)
      (p.parameter->shape().rank() == 2 ? matrices : others).parameters.push_back(std::move(p));
    return std::make_unique<Muon>(Groups{matrices}, others.parameters.empty() ? Groups{} : Groups{others}, options);
  };
}

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
