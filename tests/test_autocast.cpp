// Autocast: which types every op gives, weight copies that are never stale, scopes, threads, exceptions, checkpoints,
// and models trained and sampled in 16 bits.
#include "autograd/autocast.h"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "layers/block.h"
#include "layers/linear.h"
#include "optim/optimizers.h"
#include "tests/cases/cases.h"
#include "tests/compare.h"
#include "tests/error_message.h"

using namespace tapestry;

namespace {

constexpr DType kLowTypes[] = {DType::bf16, DType::f16};

std::map<std::string, CastPolicy> policies() {
  std::map<std::string, CastPolicy> all;
  for (const CastPolicyRow& row : kCastPolicies)
    for_each_op(row, [&](std::string_view op) {
      CHECK_MESSAGE(all.emplace(op, row.policy).second, op, " stands in two rows");
    });
  return all;
}

// What a row of the catalogue gives: its outputs, and the gradients of its inputs and parameters for fixed cotangents.
struct Results {
  std::vector<Tensor> outputs, gradients;
};

Results run(const Case& c, DType autocast) {
  std::vector<NamedParameter> weights;
  if (c.module) weights = parameters(*c.module);
  for (NamedParameter& p : weights) p.parameter->zero_grad();
  Results results;
  Tape tape;
  std::vector<Var> inputs;
  for (const Tensor& t : c.inputs) inputs.push_back(tape.watch(t.to(DType::f32)));
  Var loss;
  {
    const Autocast scope(autocast);
    for (const Var& y : c.function(inputs)) {
      results.outputs.push_back(y.value());
      const Var cotangent = random_normal(y.shape(), results.outputs.size());
      const Var part = sum(cast(y, DType::f32) * cotangent);
      loss = loss ? loss + part : part;
    }
  }
  if (loss.tracked()) tape.backward(loss);
  for (const Var& x : inputs) results.gradients.push_back(tape.grad(x));
  for (const NamedParameter& p : weights)
    if (p.parameter->has_grad()) results.gradients.push_back(p.parameter->grad().clone());
  return results;
}

// Of what is not NaN or infinite in the reference as well; relative to its largest entry, or to 1 where all are small.
double deviation(const Tensor& got, const Tensor& reference) {
  REQUIRE(got.shape() == reference.shape());
  double difference = 0, largest = 1;
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    if (!std::isfinite(reference.at(i))) continue;
    const double d = std::abs(got.at(i) - reference.at(i));
    if (!(d <= difference)) difference = d;
    largest = std::max(largest, std::abs(reference.at(i)));
  }
  return difference / largest;
}

double weight_gradient(Parameter& w, const Var& loss, Tape& tape) {
  w.zero_grad();
  tape.backward(loss);
  CHECK(w.grad().dtype() == DType::f32);
  return w.grad().at(0);
}

Var copy_of(const Parameter& p, DType dtype = DType::bf16) { return Var(p).read_as(dtype); }

std::int64_t parameter_bytes() { return memory_stats().current[static_cast<std::size_t>(MemoryCategory::parameters)]; }

}  // namespace

TEST_CASE("every function of ops.h has a policy, and every policy a function") {
  std::set<std::string> declared, listed;
  for (const std::string& name : menu().ops)
    if (!name.starts_with("operator")) declared.insert(name);
  for (const auto& [name, policy] : policies()) listed.insert(name);
  for (const std::string& name : declared) CHECK_MESSAGE(listed.contains(name), name, " has no row in kCastPolicies");
  for (const std::string& name : listed) CHECK_MESSAGE(declared.contains(name), name, " is no function of ops.h");
  static_assert(policy_of("matmul") == CastPolicy::low && policy_of("chunk") == CastPolicy::follow);
}

TEST_CASE(
    "every row of the catalogue under Autocast: types as the table says, values and gradients near those of f32") {
  const std::map<std::string, CastPolicy> table = policies();
  for (const Case& c : all_cases()) {
    if (!c.skip.empty()) continue;
    CAPTURE(c.name);
    std::optional<ConvertScope> scope;
    if (c.module) scope.emplace(*c.module, DType::f32);
    const Results plain = run(c, DType::f32), low = run(c, DType::bf16);
    REQUIRE(plain.outputs.size() == low.outputs.size());
    REQUIRE(plain.gradients.size() == low.gradients.size());
    const auto entry = table.find(c.covers());
    const bool onto_f32 = c.name.find("residual") != std::string::npos;  // which is f32 here
    const bool gives_low =
        entry != table.end() && !onto_f32 && (entry->second == CastPolicy::low || entry->second == CastPolicy::norm);
    for (std::size_t i = 0; i < low.outputs.size(); ++i) {
      if (entry != table.end()) CHECK(low.outputs[i].dtype() == (gives_low ? DType::bf16 : DType::f32));
      CHECK(deviation(low.outputs[i], plain.outputs[i]) < 0.03);
    }
    for (std::size_t i = 0; i < low.gradients.size(); ++i) {
      CAPTURE(i);
      CHECK(low.gradients[i].dtype() == DType::f32);
      CHECK(deviation(low.gradients[i], plain.gradients[i]) < 0.05);
    }
  }
}

TEST_CASE("types of results and gradients for every kind of operand") {
  const Tensor f32 = random_normal({3, 3}, 1);
  for (const DType low : kLowTypes) {
    const DType other = low == DType::bf16 ? DType::f16 : DType::bf16;
    Tape tape;
    const Var a = tape.watch(f32.to(low)), b = tape.watch(f32), c = tape.watch(f32.to(other));
    const auto type = [](const Var& v) { return v.dtype(); };
    CHECK(type(a + b) == DType::f32);
    CHECK(type(b * a) == DType::f32);
    CHECK(type(a - c) == DType::f32);
    CHECK(type(a / a) == low);
    CHECK(type(maximum(a, b)) == DType::f32);
    CHECK(type(where(zeros({3, 3}, DType::u8), a, b)) == DType::f32);
    CHECK(type(concat({a, b, c}, 0)) == DType::f32);
    CHECK(type(stack({a, a}, 0)) == low);
    CHECK(type(scatter_add(a, 0, zeros({3, 3}, DType::i64), b)) == DType::f32);
    CHECK(type(softmax(a)) == low);
    CHECK(type(sum(a)) == low);
    CHECK(type(mse(a, b)) == DType::f32);
    CHECK(type(mse(a, a)) == DType::f32);
    CHECK(type(mse(a, a, LossReduction::none)) == DType::f32);
    CHECK(type(nll(a, zeros({3}, DType::i64))) == DType::f32);
    const CrossEntropyOptions weighted{.class_weights = full({3}, 0.5)};
    CHECK(type(cross_entropy(a, zeros({3}, DType::i64), weighted).loss) == DType::f32);
    CHECK(type(soft_cross_entropy(a, b, weighted).loss) == DType::f32);
    {
      const Autocast scope(low);
      CHECK(type(matmul(b, c)) == low);
      CHECK(type(exp(a)) == DType::f32);
      CHECK(type(softmax(a)) == DType::f32);
      CHECK(type(sum(c)) == DType::f32);
      CHECK(type(cumsum(a, 0)) == DType::f32);
      CHECK(type(pow(a, b)) == DType::f32);
      CHECK(type(relu(a)) == low);
      CHECK(type(relu(b)) == DType::f32);
      CHECK(type(layernorm(a, full({3}, 1), zeros({3}))) == low);
      CHECK(type(linear(a, b)) == low);
      CHECK(type(linear(a, b, zeros({3}), a)) == low);
      CHECK(type(linear(a, b, zeros({3}), b)) == DType::f32);
      CHECK(type(matmul(f32.to(DType::f64), f32.to(DType::f64))) == DType::f64);
    }
    tape.backward(sum(linear(cast(a + b, DType::f32), b)) + sum(cast(c * a, DType::f32)));
    CHECK(tape.grad(a).dtype() == low);
    CHECK(tape.grad(b).dtype() == DType::f32);
    CHECK(tape.grad(c).dtype() == other);
  }
}

TEST_CASE("what cannot be combined is said with both types and the fix") {
  const Var f64(zeros({2, 2}, DType::f64)), f32(zeros({2, 2})), bf16(zeros({2, 2}, DType::bf16));
  const Var f16(zeros({2, 2}, DType::f16)), bias(zeros({2}, DType::f16));
  check_error([&] { f64 + f32; }, {"add", "f64 and f32", "cast()"});
  check_error([&] { matmul(bf16, f32); }, {"matmul", "bf16 and f32", "cast()"});
  check_error([&] { linear(bf16, f32); }, {"linear", "bf16", "f32", "cast()", "Autocast"});
  check_error([&] { concat({f64, f32}, 0); }, {"concat", "f64", "f32"});
  check_error([&] { cast(Var(zeros({2}, DType::i32)), DType::f32); }, {"cast", "i32", "f32", "Tensor::to"});
  check_error([&] { cast(f32, DType::u8); }, {"cast", "f32", "u8"});
  check_error([&] { layernorm(bf16, zeros({2}, DType::f64), zeros({2})); },
              {"layernorm", "x is bf16", "weight must be f32, not f64", "cast()"});
  check_error([&] { rmsnorm(f64, zeros({2})); }, {"rmsnorm", "x is f64", "weight must be f64, not f32"});
  check_error([] { const Autocast scope(DType::f64); }, {"autocast", "bf16 or f16", "f64"});
  check_error([] { const Autocast scope(DType::i32); }, {"autocast", "i32"});
  CHECK(Autocast::current() == DType::f32);
  const Autocast scope(DType::bf16);
  check_error([&] { linear(f32, f32, bias); }, {"linear", "bf16", "f16", "cast()"});
  check_error([&] { linear(f32, f32, {}, f16); }, {"linear", "bf16", "f16", "cast()"});
  check_error([&] { matmul(f64, f32); }, {"matmul", "f64 and f32"});
}

TEST_CASE("scopes nest, are those of a thread, and end with an exception") {
  const Var x(full({1, 1}, 1.0));
  const auto type = [&] { return matmul(x, x).dtype(); };
  CHECK(type() == DType::f32);
  {
    const Autocast outer(DType::bf16);
    CHECK(type() == DType::bf16);
    {
      const Autocast inner(DType::f16);
      CHECK(type() == DType::f16);
      const Autocast off(DType::f32);
      CHECK(type() == DType::f32);
    }
    CHECK(type() == DType::bf16);
    std::thread([&] { CHECK(type() == DType::f32); }).join();
    CHECK_THROWS_AS(
        [] {
          const Autocast inner(DType::f16);
          throw std::runtime_error("in a scope");
        }(),
        std::runtime_error);
    CHECK(type() == DType::bf16);

    // backward runs without it, and restores it whether it succeeds or not.
    for (const bool fails : {false, true}) {
      Tape tape;
      DType seen = DType::bf16;
      const Var v = tape.watch(full({}, 1.0));
      const Var y = record(
          "probe", v.value(),
          [&seen, fails](const Tensor& dy, Grad dv) {
            seen = Autocast::current();
            if (fails) throw std::runtime_error("planted");
            dv.pass(dy);
          },
          v);
      if (fails)
        CHECK_THROWS_AS(tape.backward(y), std::runtime_error);
      else
        tape.backward(y);
      CHECK(seen == DType::f32);
      CHECK(type() == DType::bf16);
    }
  }
  CHECK(type() == DType::f32);
}

TEST_CASE("O09 Stale half-precision copies of weights: a forward under no grad, then training, in one scope") {
  for (const DType low : kLowTypes) {
    Parameter w(full({1, 1}, 1.0));
    const Var x(full({1, 1}, 3.0));
    const Autocast scope(low);
    {
      const NoGrad no_grad;
      CHECK(linear(x, w).item() == 3);
      CHECK(matmul(x, w).item() == 3);
    }
    for (const auto product : {+[](const Var&a, const Var&b) { return linear(a, b); },
                               +[](const Var&a, const Var&b) { return matmul(a, b); }}) {
      Tape tape;
      const Var y = product(x, w);
      CHECK(y.tracked());
      CHECK(weight_gradient(w, sum(y), tape) == 3);
    }
  }
}

TEST_CASE("O09 Stale half-precision copies of weights: a weight changed in any way, in one scope") {
  std::vector<Parameter> weights;
  weights.emplace_back(full({1, 1}, 1.0));
  weights.emplace_back(full({1, 1}, 1.0));
  Parameter& w = weights[0];
  const Var x(full({1, 1}, 1.0));
  const Autocast scope(DType::bf16);
  const auto y = [&] { return linear(x, w).item(); };
  CHECK(y() == 1);
  w.mutable_value().fill(2);
  CHECK(y() == 2);
  w.assign(full({1, 1}, 3.0));
  CHECK(y() == 3);
  w.mutable_value() = full({1, 1}, 4.0);
  CHECK(y() == 4);
  w.to(DType::f64);
  w.to(DType::f32);
  CHECK(y() == 4);
  {
    Sgd optimizer(std::vector<ParameterGroup>{{.parameters = {{"w", &w}, {"v", &weights[1]}}}}, {.momentum = 0});
    CHECK(y() == 4);
    {
      Tape tape;
      weight_gradient(w, sum(linear(x, w)), tape);
    }
    optimizer.step({.lr = 1});
    CHECK(y() == 3);
    w.assign(full({1, 1}, 7.0));
    CHECK(y() == 7);
  }
  w.mutable_value().fill(8);
  CHECK(y() == 8);
  Parameter& other = weights[1];
  other.assign(full({1, 1}, 5.0));
  CHECK(linear(x, other).item() == 5);
  Parameter free_a(full({1, 1}, 9.0)), free_b(full({1, 1}, 10.0));
  CHECK(linear(x, free_b).item() == 10);
  tie(free_a, free_b);
  CHECK(linear(x, free_b).item() == 9);
}

TEST_CASE("a weight changed between forward and backward is noticed, through its copy too") {
  Parameter w(random_normal({2, 2}, 1));
  Tape tape;
  const Var y = [&] {
    const Autocast scope(DType::bf16);
    return sum(linear(random_normal({2, 2}, 2), w));
  }();
  const WriterScope writer("planted writer");
  w.mutable_value().fill(1);
  Parameter v(random_normal({2, 2}, 1));
  check_error([&] { tape.backward(y + sum(square(v))); }, {"linear", "changed by", "planted writer"});
}

TEST_CASE("a weight has one copy, converted once for each change, in place, and counted with the parameters") {
  Parameter w(random_normal({64, 64}, 1)), tied(Shape{64, 64});
  tie(w, tied);
  const Var x = random_normal({4, 64}, 2);
  const std::int64_t before = parameter_bytes();
  const auto use = [&] {
    const Autocast scope(DType::bf16);
    linear(x, w);
    matmul(x, tied, false, true);
    const Autocast inner(DType::bf16);
    const NoGrad no_grad;
    linear(x, tied);
  };
  use();
  const std::int64_t with_copy = parameter_bytes();
  CHECK(with_copy - before == 64 * 64 * 2);
  const Storage copy = copy_of(w).value().storage();
  const std::uint32_t version = copy.version();
  use();
  CHECK(copy_of(tied).value().storage() == copy);
  CHECK(copy.version() == version);
  CHECK(same_bits(copy_of(w).value(), w.value().to(DType::bf16)));

  const Tensor held = copy_of(w).value();  // whoever holds the old copy keeps it
  w.mutable_value().fill(2);
  CHECK(copy_of(w).value().storage() != held.storage());
  CHECK(copy_of(w).value().at(0) == 2);
  CHECK(held.at(0) != 2);

  const std::byte* place = copy_of(w).value().raw_data();
  const std::int64_t bytes = parameter_bytes();
  w.mutable_value().fill(3);
  use();
  CHECK(copy_of(w).value().raw_data() == place);
  CHECK(copy_of(w).value().at(0) == 3);
  CHECK(parameter_bytes() == bytes);
  CHECK(copy_of(w, DType::f16).value().dtype() == DType::f16);
}

TEST_CASE("gradients of weights are f32 and are not rounded on the way") {
  // The sum over rows 1 + 2^-12 has no 16-bit form, and each of its terms has.
  const Tensor x = tensor({1, 1.0 / 4096}, {2, 1});
  for (const DType low : kLowTypes) {
    Parameter w(full({1, 1}, 1.0));
    Tape tape;
    const Var watched = tape.watch(full({1, 1}, 1.0));  // linear and convolutions know which operand is the weight
    const Var y = [&] {
      const Autocast scope(low);
      const Var image = x.reshape({2, 1, 1, 1});
      return sum(linear(x, w)) + sum(matmul(x, w)) + sum(linear_gelu(zeros({2, 1}), w)) + sum(linear(x, watched)) +
             sum(conv2d(image, reshape(watched, Shape{1, 1, 1, 1})));
    }();
    CHECK(weight_gradient(w, y, tape) == 2 + 2.0 / 4096);
    CHECK(tape.grad(watched).at(0) == 2 + 2.0 / 4096);
  }
}

TEST_CASE("checkpoint computes again under the Autocast of its forward, after that has ended") {
  Rng rng(1);
  const Block block({.width = 8, .heads = 2}, rng);
  Parameter& w = const_cast<Parameter&>(block.mlp.up.weight);
  const Tensor x = random_normal({2, 3, 8}, 2);
  const auto gradients = [&](bool with_checkpoint) {
    w.zero_grad();
    Tape tape;
    const Var v = tape.watch(x);
    Var y;
    {
      const Autocast scope(DType::bf16);
      y = with_checkpoint ? checkpoint([&](const Var& u) { return block(u); }, v) : block(v);
    }
    CHECK(y.dtype() == DType::f32);  // the residual stream
    tape.backward(sum(square(y)));
    return std::array{y.value(), tape.grad(v), w.grad().clone()};
  };
  const auto plain = gradients(false), again = gradients(true);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], again[i]));
}
