// A suite of rows of one's own: registration, the command line, reproducers, and the files for machines.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "autograd/gradcheck_main.h"
#include "autograd/ops.h"
#include "tests/planted_ops.h"

using namespace tapestry;

namespace {

// y = x and dx = factor * dy, in any float dtype.
Var scaled_gradient(const Var& x, double factor) {
  return record(
      "same", x.value().clone(),
      [factor](const Tensor& dy, Grad dx) {
        const bool add = dx.claim();
        visit_float("same", dy.dtype(), [&]<class T>(TypeTag<T>) {
          T* d = dx.data<T>();
          for (std::int64_t i = 0; i < dy.numel(); ++i)
            d[i] = (add ? d[i] : T(0)) + static_cast<T>(factor) * dy.data<T>()[i];
        });
      },
      x);
}
Var right(const Var& x) { return scaled_gradient(x, 1); }
Var wrong(const Var& x) { return scaled_gradient(x, -1); }

struct Layer : Module {
  Layer() : weight(tensor({1, 2, 3})) {}
  Var operator()(const Var& x) const { return right(x); }
  void visit(Visitor& v) override { v("weight", weight); }
  Parameter weight;
};

GradcheckCase skipped() {
  GradcheckCase c = gradcheck_case("slow \"<&>\"", right, Shape{2});
  c.skip = "takes <long>";
  return c;
}

int call(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "./suite");
  return gradcheck_main(static_cast<int>(arguments.size()), arguments.data());
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TAPESTRY_GRADCHECK("right [4, 3]", right, Shape{4, 3})
TAPESTRY_GRADCHECK("wrong [6, 5]", wrong, Shape{6, 5})
TAPESTRY_GRADCHECK("right at values", right, tensor({1, 2}, {2}, DType::f64))

TEST_CASE("Registered rows run from the command line of a program") {
  CHECK(registered_gradchecks().size() == 3);
  CHECK(call({"--filter", "right"}) == 0);
  CHECK(call({"--filter=right", "--seed=5"}) == 0);
  CHECK(call({}) == 1);
  CHECK(call({"--list"}) == 0);
  CHECK(call({"--help"}) == 0);
  CHECK(call({"--filter", "nothing"}) == 2);
  CHECK(call({"--filter"}) == 2);
  CHECK(call({"--seed", "x"}) == 2);
  CHECK(call({"--unknown", "1"}) == 2);
  CHECK(call({"--filter", "right", "--json", "/nonexistent/folder/file"}) == 1);
}

TEST_CASE("A seed draws other inputs, but not those given by value") {
  GradcheckCase drawn = gradcheck_case("right", right, Shape{3}, tensor({1, 2}, {2}, DType::f64));
  const std::vector<Tensor> before = drawn.inputs;
  reseed(drawn, 9);
  CHECK(drawn.gradcheck.seed == 9);
  CHECK(!same_bits(drawn.inputs[0], before[0]));
  CHECK(same_bits(drawn.inputs[1], before[1]));
  reseed(drawn, 0);
  CHECK(same_bits(drawn.inputs[0], before[0]));
}

TEST_CASE("A failing row is shrunk while the fault stays") {
  CHECK(shrink(gradcheck_case("wrong", wrong, Shape{6, 5})).inputs[0].shape() == Shape{1, 1});
  // Equal extents stay equal: x W with W [C, C]. The fault shows from two columns on.
  const auto transposed = planted::with(planted::product, planted::Bug::transposed);
  const GradcheckCase small = shrink(gradcheck_case("product", transposed, Shape{5, 8}, Shape{8, 8}));
  CHECK(small.inputs[0].shape() == Shape{2, 2});
  CHECK(small.inputs[1].shape() == Shape{2, 2});
  CHECK(shrink(gradcheck_case("right", right, Shape{6, 5})).inputs[0].shape() == Shape{6, 5});
  // Of values given by hand the leading part is kept.
  const Tensor given = tensor({1, 2, 3, 4, 5, 6}, {2, 3}, DType::f64);
  const GradcheckCase cut = shrink(gradcheck_case("wrong", wrong, given));
  CHECK(cut.inputs[0].shape() == Shape{1, 1});
  CHECK(cut.inputs[0].at(0) == 1);
  // What is fixed elsewhere stays, here the last axis, although the leading one is as long.
  auto fixed = [](const Var& x) {
    TAP_CHECK(x.shape().back() == 3, "fixed: the last axis must be 3");
    return wrong(x);
  };
  CHECK(shrink(gradcheck_case("fixed", fixed, Shape{3, 3})).inputs[0].shape() == Shape{1, 3});
}

TEST_CASE("The files name rows, faults, diagnoses and how to repeat them") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                       ("gradcheck_suite_" + std::to_string(std::hash<std::string>{}(__FILE__)));
  std::filesystem::create_directories(folder);
  const std::string json_path = (folder / "results.json").string(), xml_path = (folder / "results.xml").string();
  std::vector<GradcheckCase> rows = registered_gradchecks();
  rows.push_back(skipped());
  GradcheckSuiteOptions options;
  options.seed = 3;
  options.json = json_path;
  options.junit = xml_path;
  options.command = "./suite";
  CHECK(run_gradcheck_suite(rows, options) == 1);

  const nlohmann::json json = nlohmann::json::parse(read(json_path));
  CHECK(json["passed"] == 2);
  CHECK(json["failed"] == 1);
  CHECK(json["skipped"] == 1);
  REQUIRE(json["rows"].size() == 4);
  const nlohmann::json& failed = json["rows"][1];
  CHECK(failed["name"] == "wrong [6, 5]");
  CHECK(failed["kind"] == "op");
  CHECK(failed["seed"] == 3);
  CHECK(failed["fault"] == "wrong gradient");
  CHECK(failed["diagnosis"] == "sign flipped");
  const std::string details = failed["details"];
  CHECK_MESSAGE(details.find("./suite --filter 'wrong [6, 5]' --seed 3") != std::string::npos, details);
  CHECK_MESSAGE(details.find("still wrong with [1, 1]") != std::string::npos, details);
  CHECK(json["rows"][3]["reason"] == "takes <long>");

  const std::string xml = read(xml_path);
  CHECK(xml.find("tests=\"4\" failures=\"1\" skipped=\"1\"") != std::string::npos);
  CHECK(xml.find("name=\"slow &quot;&lt;&amp;&gt;&quot;\"") != std::string::npos);
  CHECK(xml.find("<failure type=\"wrong gradient\"") != std::string::npos);
  CHECK(xml.find("takes &lt;long&gt;") != std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST_CASE("A Module is a row with its parameters") {
  const GradcheckCase c = gradcheck_case("Layer", Layer(), Shape{3});
  REQUIRE(c.module);
  const GradcheckCaseResult result = run_case(c);
  CHECK_MESSAGE(result.passed, result.details);
  CHECK(result.report.parameters == 1);
}

// ---- what the suite prints and its exit code

namespace {

struct Printed {
  int code;
  std::string text;
};

Printed run_printed(const std::vector<GradcheckCase>& rows, GradcheckSuiteOptions options) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file);
  options.out = file;
  Printed result{run_gradcheck_suite(rows, options), {}};
  std::rewind(file);
  for (int c; (c = std::fgetc(file)) != EOF;) result.text += static_cast<char>(c);
  std::fclose(file);
  return result;
}

void check_contains(const std::string& text, const std::string& part) {
  CHECK_MESSAGE(text.find(part) != std::string::npos, "no \"", part, "\" in\n", text);
}

// A row that fails only in f32.
Var wrong_in_f32(const Var& x) { return scaled_gradient(x, x.dtype() == DType::f32 ? 2 : 1); }
// The gradient is NaN.
Var not_a_number(const Var& x) { return scaled_gradient(x, std::nan("")); }

}  // namespace

TEST_CASE("A required name without a row fails, unless rows are chosen by a filter") {
  const std::vector<GradcheckCase> rows{gradcheck_case("right [3]", right, Shape{3}), skipped()};
  GradcheckSuiteOptions options;
  options.ops = {"right", "slow"};
  const Printed complete = run_printed(rows, options);
  CHECK(complete.code == 0);
  check_contains(complete.text, "skipped: slow \"<&>\": takes <long>\n");
  check_contains(complete.text, "gradcheck: 1 passed, 0 failed, 1 skipped; 1 of 2 ops and 0 of 0 layers checked");

  options.ops = {"right", "slow", "left"};
  options.layers = {"Middle"};
  const Printed incomplete = run_printed(rows, options);
  CHECK(incomplete.code == 1);
  check_contains(incomplete.text, "not covered: no row is named after Middle, left; add one for each\n");
  check_contains(incomplete.text, "1 of 3 ops and 0 of 1 layers checked");
  options.filter = "right";
  CHECK(run_printed(rows, options).code == 0);
}

TEST_CASE("A failure is printed with the command, the seed and the smallest inputs") {
  GradcheckSuiteOptions options;
  options.command = "./suite";
  const Printed drawn = run_printed({gradcheck_case("wrong [6, 5]", wrong, Shape{6, 5})}, options);
  CHECK(drawn.code == 1);
  check_contains(drawn.text, "FAIL  wrong [6, 5]");
  check_contains(drawn.text, "  reproduce: ./suite --filter 'wrong [6, 5]' --seed 0\n");
  check_contains(drawn.text, "  inputs: [6, 5]; still wrong with [1, 1]: ");
  check_contains(drawn.text, "\nfailed: wrong [6, 5]\n");
  const Printed given = run_printed({gradcheck_case("wrong", wrong, tensor({0.5, 2}, {2}, DType::f64))}, options);
  check_contains(given.text, "  inputs: [2]; still wrong with [1]: 0.5\n");
}

TEST_CASE("NaN, infinities and special characters leave the files valid") {
  std::vector<GradcheckCase> rows{gradcheck_case("nan \"<&>\\ \x01", not_a_number, Shape{2}),
                                  gradcheck_case("half", wrong_in_f32, Shape{2})};
  GradcheckSuiteResult suite;
  for (const GradcheckCase& c : rows) suite.rows.push_back({&c, run_case(c), {}});
  suite.uncovered = {"a<b"};
  const nlohmann::json json = nlohmann::json::parse(gradcheck_json(suite));
  CHECK(json["failed"] == 2);
  CHECK(json["uncovered"] == nlohmann::json::array({"a<b"}));
  CHECK(json["rows"][0]["fault"] == "not finite");
  CHECK(json["rows"][0]["worst"]["analytic"].is_null());
  CHECK(json["rows"][0]["worst"]["numeric"].is_number());
  CHECK(json["rows"][1]["fault"] == "f32");
  CHECK(json["rows"][1]["checks"] == nlohmann::json::array({"f32"}));
  const std::string xml = gradcheck_junit(suite);
  check_contains(xml, "tests=\"3\" failures=\"3\"");
  check_contains(xml, "name=\"nan &quot;&lt;&amp;&gt;\\ ?\"");
  check_contains(xml, "<failure type=\"f32\" message=\"f32: the gradient of input 0 is off by ");
  check_contains(xml, "<testcase classname=\"coverage\" name=\"a&lt;b\"");
}

TEST_CASE("A frozen parameter in turn: the other gradients must not change") {
  // Takes the gradient of x from the weight's when that is wanted.
  struct Entangled : Module {
    Entangled() : weight(tensor({1, 2, 3})) {}
    Var operator()(const Var& x) const {
      const Var w = weight;
      return scaled_gradient(x, w.tracked() || !Tape::current() ? 1 : 3) + w;
    }
    void visit(Visitor& v) override { v("weight", weight); }
    Parameter weight;
  };
  const GradcheckCaseResult result = run_case(gradcheck_case("Entangled", Entangled(), Shape{3}));
  CHECK(!result.passed);
  check_contains(result.details, "  untracked: the gradient of input 0 differs when weight is frozen");
}
