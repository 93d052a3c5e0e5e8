// Runs the gradient-check catalogue, and checks that it is complete and that each of its checks can fail.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "autograd/gradcheck_main.h"
#include "core/parallel.h"
#include "tests/cases/cases.h"
#include "tests/source_scan.h"

using namespace tapestry;

namespace {

const std::filesystem::path kSource = TAPESTRY_SOURCE_DIR;

std::set<std::string> covered() {
  std::set<std::string> names;
  for (const Case& c : all_cases()) names.insert(c.covers());
  return names;
}

std::set<std::string> missing(const std::set<std::string>& wanted, const std::set<std::string>& present) {
  std::set<std::string> result;
  for (const std::string& name : wanted)
    if (!present.contains(name)) result.insert(name);
  return result;
}

// Which of the compulsory sizes the inputs of an op's rows have.
struct Sizes {
  bool one = false, odd = false, large = false;
  void see(const Shape& shape) {
    for (const std::int64_t extent : shape.dims()) {
      one |= extent == 1;
      odd |= extent == 31 || extent == 33;
      large |= extent >= 100;
    }
    large |= shape.numel() > 1000;
  }
  std::string lacks() const {
    return text_of(one ? "" : " an axis of 1,", odd ? "" : " an axis of 31 or 33,",
                   large ? "" : " an axis of 100 or more than 1000 elements,");
  }
};

// Exceptions, each with its reason.
const std::map<std::string, const char*> kAnySize{
    {"operator+", "calls add, add_scalar and affine"},
    {"operator-", "calls sub, neg and affine"},
    {"operator*", "calls mul and scale"},
    {"operator/", "calls div, scale and reciprocal"},
    {"one_hot", "has no gradient of its own"},
};

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + " ";
  return text;
}

Tensor multiplied(const Tensor& t, double factor) {
  Tensor result = t.to(DType::f64).clone();
  double* x = result.mutable_data<double>();
  for (std::int64_t i = 0; i < t.numel(); ++i) x[i] *= factor;
  return result.to(t.dtype());
}

// y = factor * x for any float dtype; dx = factor * dy.
template <class Factor>
Var times(const Var& x, Factor factor) {
  return record(
      "times", multiplied(x.value(), factor(x.dtype())),
      [factor](const Tensor& dy, Grad dx) { dx.pass(multiplied(dy, factor(dy.dtype()))); }, x);
}

Case planted(const std::string& name, std::size_t inputs, GradcheckFunction function) {
  Case c;
  c.name = name;
  for (std::size_t i = 0; i < inputs; ++i) c.inputs.push_back(tensor({0.5, -1.5, 2.5}, {3}, DType::f64));
  c.function = std::move(function);
  c.low = true;
  return c;
}

void check_finds(const Case& c, const std::string& check) {
  const CaseResult result = run_case(c);
  CHECK(!result.passed);
  CHECK_MESSAGE(result.details.find("  " + check + ": ") != std::string::npos, result.line, "\n", result.details);
}

double one(DType) { return 1; }

}  // namespace

TEST_CASE("Every row of the catalogue passes all checks") {
  double worst_gradient = 0, worst_f32 = 0, worst_bf16 = 0, worst_f16 = 0;
  std::int64_t not_low = 0;
  std::set<std::string> names;
  for (const Case& c : all_cases()) {
    CHECK_MESSAGE(names.insert(c.name).second, "two rows are named ", c.name);
    const CaseResult result = run_case(c);
    CHECK_MESSAGE(result.passed, result.line, "\n", result.details);
    worst_gradient = std::max(worst_gradient, result.gradient_error);
    worst_f32 = std::max(worst_f32, result.f32_error);
    worst_bf16 = std::max(worst_bf16, result.bf16_error);
    worst_f16 = std::max(worst_f16, result.f16_error);
    not_low += !c.skip_low.empty();
  }
  MESSAGE(names.size(), " rows, worst gradient error ", worst_gradient, ", worst f32 error ", worst_f32, ", bf16 ",
          worst_bf16, ", f16 ", worst_f16, "; ", not_low, " rows not in bf16 and f16");
  CHECK(worst_gradient < 1e-7);
}

TEST_CASE("slow: no row fails for any of 50 seeds") {
  std::int64_t kinks = 0;
  double seconds = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    for (const Case& c : all_cases(seed)) {
      const CaseResult result = run_case(c);
      CHECK_MESSAGE(result.passed, "seed ", seed, ": ", result.line, "\n", result.details);
      kinks += result.report.kinks;
      seconds += result.seconds;
    }
  MESSAGE(kinks, " kinks skipped, ", seconds, " s");
}

TEST_CASE("A seed makes other inputs, parameters, ids and masks of the same rows") {
  const std::vector<Case> rows = all_cases(), again = all_cases(), others = all_cases(7);
  REQUIRE(rows.size() == others.size());
  auto output = [](const Case& c) {
    const NoGrad no_grad;
    std::optional<ConvertScope> scope;
    if (c.module) scope.emplace(*c.module, DType::f64);
    return c.function(std::vector<Var>(c.inputs.begin(), c.inputs.end()))[0].value();
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(rows[i].name);
    REQUIRE(rows[i].name == others[i].name);
    CHECK(others[i].gradcheck.seed == 7);
    for (std::size_t k = 0; k < rows[i].inputs.size(); ++k) {
      CHECK(same_bits(rows[i].inputs[k], again[i].inputs[k]));
      CHECK(rows[i].inputs[k].shape() == others[i].inputs[k].shape());
      // One value, or few to choose from, may be the same again.
      if (rows[i].inputs[k].numel() > 2) CHECK(!same_bits(rows[i].inputs[k], others[i].inputs[k]));
    }
    if (rows[i].inputs.empty()) CHECK(!same_bits(output(rows[i]), output(others[i])));
  }
}

TEST_CASE("Every function of ops.h and every layer has a row") {
  CHECK(menu().ops.size() > 35);
  CHECK(menu().layers.size() >= 8);
  const std::set<std::string> without = uncovered(menu().all(), all_cases());
  CHECK_MESSAGE(without.empty(), "no row in tests/cases covers ", joined(without));
}

TEST_CASE("The menu that the build made is that of the headers") {
  std::vector<std::string> sources;
  for (const auto& path : scan::files_below(kSource / "layers", ".h")) sources.push_back(scan::read_file(path));
  CHECK(menu().layers == scan::module_classes(sources));
  CHECK(menu().ops == scan::declared_functions(scan::read_file(kSource / "autograd/ops.h")));
}

TEST_CASE("A row that is taken away is missed by name") {
  std::vector<Case> rows;
  for (Case& c : all_cases())
    if (c.covers() != "tril" && c.covers() != "GroupNorm") rows.push_back(std::move(c));
  CHECK(uncovered(menu().all(), rows) == std::set<std::string>{"tril", "GroupNorm"});
}

TEST_CASE("Every row covers a function or layer that exists") {
  const std::set<std::string> unknown = missing(covered(), menu().all());
  CHECK_MESSAGE(unknown.empty(), "rows are named after ", joined(unknown));
}

TEST_CASE("Every function of ops.h has rows of the compulsory sizes") {
  std::map<std::string, Sizes> seen;
  for (const Case& c : all_cases())
    for (const Tensor& t : c.inputs) seen[c.covers()].see(t.shape());
  for (const std::string& name : menu().ops)
    if (!kAnySize.contains(name))
      CHECK_MESSAGE(seen[name].lacks().empty(), name, " has no row with", seen[name].lacks());
  for (const auto& [name, reason] : kAnySize) CHECK_MESSAGE(menu().ops.contains(name), name, " is no op: ", reason);
}

TEST_CASE("Ops keep their inputs and outputs by save() only") {
  for (const auto& path : scan::files_below(kSource / "autograd/ops", ".cpp"))
    for (const std::string& capture : scan::raw_captures(scan::read_file(path)))
      FAIL_CHECK(path.filename().string(), ": backward captures \"", capture, "\"; use save()");
}

TEST_CASE("The scan finds omissions that are planted") {
  const std::string header = R"(
// Var commented_out(const Var& x);
#pragma once
#define TAP_SOMETHING(x) not_a_function(x)
namespace tapestry {
Var plain(const Var& x);
Var with_default(const Var& x, Axes axes = {}, const Options& o = Options{.a = f(1)});  // Var in_comment(int);
std::array<Var, 2> several(const Var& x, const char* text = "a(b;{");
struct Options {
  int member(int);
};
inline Var operator+(const Var& a, const Var& b) { return plain(a); }
inline Var inlined(const Var& x) {
  if (x) { return call(x); }
  return x;
}
template <class F>
Var templated(F&& f);
}  // namespace tapestry
)";
  CHECK(scan::declared_functions(header) ==
        std::set<std::string>{"plain", "with_default", "several", "operator+", "inlined", "templated"});
  CHECK(missing(scan::declared_functions(header), {"plain", "several", "operator+", "inlined", "templated"}) ==
        std::set<std::string>{"with_default"});

  const std::string layers = R"(
class One : public Module { };
struct Two final : Module {
};
class Three
    : public tapestry::One, private Other {};
class Four;  // : public Module {
class Five : public Visitor {};
)";
  CHECK(scan::module_classes({layers}) == std::set<std::string>{"One", "Two", "Three"});
}

TEST_CASE("The scan finds raw captures that are planted") {
  auto complaints = [](const std::string& captures) {
    return scan::raw_captures(
               "Var other(const Var& count) {\n}\nVar f(const Var& x, const Var& weight) {\n"
               "  const Tensor& alias = weight.value();\n  const auto [operand, other] = detail::autocast<\"f\">(x, "
               "weight);\n"
               "  Tensor y = empty_like(x.value()), mean = empty({3});\n  return record(\n      \"f\", y, [" +
               captures + "](const Tensor& dy, Grad dx, Grad dw) { use(x.value()); }, x, weight);\n}\n")
        .size();
  };
  CHECK(complaints("") == 0);
  CHECK(complaints("x = save(x), w = save(weight), mean, count, eps = 1.0, y = save(y)") == 0);
  CHECK(complaints("s = save_for<formula::Exp>(x.value(), y), shape = x.shape()") == 0);
  CHECK(complaints("x = x.value()") == 1);
  CHECK(complaints("mean, kept = weight.value(), x = save(x)") == 1);
  CHECK(complaints("x") == 1);
  CHECK(complaints("w = weight, mean") == 1);
  CHECK(complaints("alias") == 1);
  CHECK(complaints("operand") == 1);
  CHECK(complaints("kept = other") == 1);
  CHECK(complaints("x = save(operand), shape = other.shape()") == 0);
  CHECK(complaints("y, mean") == 1);
  CHECK(complaints("=") == 1);
  CHECK(complaints("&") >= 1);
}

TEST_CASE("Each check of a row can fail") {
  const CaseResult right = run_case(planted("right", 2, gradcheck_function([](const Var& a, const Var& b) {
                                              return std::array{times(a, one), times(b, one)};
                                            })));
  CHECK_MESSAGE(right.passed, right.details);

  check_finds(planted("gradient", 1, gradcheck_function([](const Var& x) {
                        return record(
                            "wrong", x.value().clone(),
                            [](const Tensor& dy, Grad dx) { dx.pass(full(dy.shape(), 2, dy.dtype())); }, x);
                      })),
              "gradient");
  check_finds(planted("memory", 1, gradcheck_function([](const Var& x) {
                        const Tensor junk = empty({3}, x.dtype());
                        const bool clean = std::isfinite(junk.at(0));
                        return times(x, [clean](DType) { return clean ? 1 : 2; });
                      })),
              "memory");
  // The gradient of b is right only while a is tracked.
  check_finds(planted("untracked", 2, gradcheck_function([](const Var& a, const Var& b) {
                        const double factor = a.tracked() || !Tape::current() ? 1 : 3;
                        return std::array{times(a, one), times(b, [factor](DType) { return factor; })};
                      })),
              "untracked");
  // Right unless both inputs are one node, which no op should be able to tell: here by comparing storage.
  check_finds(planted("same input", 2, gradcheck_function([](const Var& a, const Var& b) {
                        const bool same = a.value().storage() == b.value().storage();
                        return std::array{times(a, one), same ? b.detach() : times(b, one)};
                      })),
              "same input");
  check_finds(planted("f32", 1, gradcheck_function([](const Var& x) {
                        return times(x, [](DType dtype) { return dtype == DType::f32 ? 1.0001 : 1; });
                      })),
              "f32");
  for (const DType low : {DType::bf16, DType::f16})
    check_finds(planted("low", 1, gradcheck_function([low](const Var& x) {
                          return times(x, [low](DType dtype) { return dtype == low ? 1.2 : 1; });
                        })),
                to_text(low));
  check_finds(planted("determinism", 1, gradcheck_function([](const Var& x) {
                        return times(x, [](DType) { return num_threads() == 3 ? 1 + 1e-6 : 1; });
                      })),
              "determinism");
}
