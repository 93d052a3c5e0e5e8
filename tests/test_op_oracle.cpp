// PyTorch as the oracle of single functions: every row of tests/oracle/op_reference.h5, which
// tests/oracle/make_op_reference.py wrote, is computed here in f64 and in f32, with the gradient of every input.
#include <doctest/doctest.h>

#include <cstring>
#include <set>
#include <sstream>

#include "core/io/hdf5_file.h"
#include "tests/compare.h"
#include "tests/op_oracle_table.h"

using namespace tapestry;
using namespace tapestry::testing;

namespace {

// Where a convention of this library is another one than PyTorch's: what y is there, or, of a gradient, what dy is
// multiplied by. Elements are counted in row-major order.
struct Convention {
  std::string row, item, why;
  std::map<std::int64_t, double> elements;
};

constexpr const char* kNanGradient = "the gradient at NaN is NaN";
constexpr const char* kLimit = "at infinity the function and its gradient are their limits";
constexpr const char* kNothing = "from nothing comes 0 with gradient 0, or -inf for a logarithm";
constexpr const char* kFirst = "the first of equal elements has the gradient";
constexpr const char* kIeee = "a power is that of IEEE";
const std::map<std::int64_t, double> kNanPairs = {{7, NAN},  {15, NAN}, {23, NAN}, {31, NAN}, {39, NAN},
                                                  {47, NAN}, {55, NAN}, {56, NAN}, {57, NAN}, {58, NAN},
                                                  {59, NAN}, {60, NAN}, {61, NAN}, {62, NAN}, {63, NAN}};
const std::vector<Convention> kConventions = {
    {"abs: special points", "dx", kNanGradient, {{12, NAN}}},
    {"elu: special points", "dx", kNanGradient, {{12, NAN}}},
    {"leaky_relu: special points", "dx", kNanGradient, {{12, NAN}}},
    {"relu: special points", "dx", kNanGradient, {{12, NAN}}},
    {"max: axis 0, with NaN", "dx", kNanGradient, {{1, NAN}}},
    {"min: axis 0, with NaN", "dx", kNanGradient, {{1, NAN}}},
    {"max_pool1d: window 2, special points", "dx", kNanGradient, {{1, NAN}, {2, NAN}}},
    {"maximum: special pairs", "da", kNanGradient, kNanPairs},
    {"maximum: special pairs", "db", kNanGradient, kNanPairs},
    {"minimum: special pairs", "da", kNanGradient, kNanPairs},
    {"minimum: special pairs", "db", kNanGradient, kNanPairs},
    {"clamp: special points",
     "dx",
     "the bounds are within; and the gradient at NaN is NaN",
     {{3, 1}, {8, 1}, {12, NAN}}},
    {"sign: special points", "y", "the sign of NaN is NaN", {{12, NAN}}},
    {"gelu: special points", "y", kLimit, {{0, 0}}},
    {"gelu: special points", "dx", kLimit, {{0, 0}, {11, 1}}},
    {"gelu_tanh: special points", "y", kLimit, {{0, 0}}},
    {"gelu_tanh: special points", "dx", kLimit, {{0, 0}, {11, 1}}},
    {"silu: special points", "y", kLimit, {{0, 0}}},
    {"silu: special points", "dx", kLimit, {{0, 0}, {11, 1}}},
    {"pow: special pairs", "db", kLimit, {{48, 0}, {49, 0}, {50, 0}}},
    {"pow: exponent 0.5", "y", kIeee, {{0, INFINITY}}},
    {"pow: exponent 0.5", "dx", kIeee, {{0, 0}, {4, INFINITY}}},
    {"pow: exponent -0.5", "y", kIeee, {{0, 0}, {4, INFINITY}}},
    {"max: equal elements", "dx", kFirst, {{1, 1}, {2, 0}}},
    {"min: equal elements", "dx", kFirst, {{0, 1}, {3, 0}}},
    {"logsumexp: axis 1, special rows", "dx", kNothing, {{2, 0}, {3, 0}}},
    {"softmax: keep mask, nothing kept", "y", kNothing, {{0, 0}, {1, 0}, {2, 0}}},
    {"cross_entropy: all ignored", "y", kNothing, {{0, 0}}},
    {"kl_div: none, targets 0", "y", "0 where the target is 0", {{2, 0}}},
    {"kl_div: none, targets 0", "dt", "log t at 0 is -inf", {{0, -INFINITY}}},
};

// The index is explained in the script.
std::map<std::string, Items> read_reference() {
  const Hdf5Reader file(TAPESTRY_SOURCE_DIR "/tests/oracle/op_reference.h5");
  const std::vector<std::uint8_t> index = file.read("index").to_vector<std::uint8_t>();
  const Tensor numbers = file.read("numbers");
  std::istringstream lines(std::string(index.begin(), index.end()));
  std::map<std::string, Items> rows;
  std::int64_t first = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream entries(line);
    std::string name, entry;
    std::getline(entries, name, '|');
    while (std::getline(entries, entry, '|')) {
      std::istringstream words(entry);
      std::string item, dtype;
      words >> item >> dtype;
      std::vector<std::int64_t> extents;
      for (std::int64_t extent; words >> extent;) extents.push_back(extent);
      const Shape shape{std::span<const std::int64_t>(extents)};
      rows[name][item] = numbers.rows(first, shape.numel()).reshape(shape).to(dtype_from_name(dtype));
      first += shape.numel();
    }
  }
  CHECK(first == numbers.numel());
  return rows;
}

bool equal(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Puts our conventions in the place of PyTorch's, from which they must differ.
void apply_conventions(std::map<std::string, Items>& rows) {
  for (const Convention& c : kConventions) {
    Tensor &want = rows.at(c.row).at(c.item), &dy = rows.at(c.row).at("dy");
    want = want.clone();
    for (const auto& [i, value] : c.elements) {
      const double ours = c.item[0] == 'd' ? value * dy.at(i % dy.numel()) : value;
      INFO(c.row, ", element ", i, " of ", c.item, ": ", c.why);
      CHECK(!equal(want.at(i), ours));
      want.mutable_data<double>()[i] = ours;
    }
  }
}

const std::map<std::string, Items>& reference() {
  static const std::map<std::string, Items> rows = [] {
    std::map<std::string, Items> read = read_reference();
    apply_conventions(read);
    return read;
  }();
  return rows;
}
const Table& table() {
  static const Table functions = op_oracle_table();
  return functions;
}

// The longest key of the table that begins `row` and ends with a word of it; empty: none.
std::string key_of(const std::string& row) {
  std::string key;
  for (const auto& [name, function] : table()) {
    const bool begins = row.starts_with(name) && (row.size() == name.size() || std::strchr(":, ", row[name.size()]));
    if (begins && name.size() > key.size()) key = name;
  }
  return key;
}

// The largest difference over the largest finite element that is wanted (or 1e-3). Infinite where shapes differ, or
// where one has a NaN or an infinity that the other has not.
double difference(const Tensor& got, const Tensor& want) {
  if (!(got.shape() == want.shape())) return INFINITY;
  double largest = 1e-3, error = 0;
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    const double g = got.at(i), w = want.at(i);
    if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
    if (equal(g, w)) continue;
    if (!std::isfinite(g - w)) return INFINITY;
    error = std::max(error, std::abs(g - w));
  }
  return error / largest;
}

// y, and d<input> for every input that the reference differentiates.
bool is_result(const std::string& item, const Items& row) {
  return item == "y" || (item != "dy" && item.starts_with("d") && row.contains(item.substr(1)));
}

void check_rows(DType dtype, double tolerance) {
  for (const auto& [name, row] : reference()) {
    const std::string key = key_of(name);
    if (key.empty()) continue;  // the last test reports it
    CAPTURE(name);
    Inputs in(row, dtype);
    const Var y = table().at(key)(in);
    Items results = in.backward(y);
    results["y"] = y.value();
    for (const auto& [item, want] : row) {
      if (!is_result(item, row)) continue;
      CAPTURE(item);
      REQUIRE(results.contains(item));
      CHECK(results.at(item).dtype() == dtype);
      CHECK(difference(results.at(item), want) < tolerance);
    }
  }
}

}  // namespace

TEST_CASE("values and gradients are PyTorch's in f64") { check_rows(DType::f64, 1e-12); }

TEST_CASE("values and gradients are PyTorch's in f32") { check_rows(DType::f32, 1e-4); }

TEST_CASE("every row has a function, and every function has a row") {
  std::set<std::string> used;
  for (const auto& [row, items] : reference()) {
    CAPTURE(row);
    const std::string key = key_of(row);
    CHECK(!key.empty());
    used.insert(key);
  }
  for (const auto& [key, function] : table()) {
    CAPTURE(key);
    CHECK(used.contains(key));
  }
}
