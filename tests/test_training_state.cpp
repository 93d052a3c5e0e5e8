// Training states: everything comes back bit for bit, and what does not fit is listed and changes nothing.
#include <doctest/doctest.h>

#include <bit>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "core/io/hdf5_file.h"
#include "core/random.h"
#include "optim/adam.h"
#include "optim/run_text.h"
#include "optim/sgd.h"
#include "optim/training_state.h"
#include "tests/fault_injection.h"

using namespace tapestry;

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Any number of parameters and one buffer.
class List : public Module {
 public:
  List(const std::vector<std::pair<std::string, Shape>>& members, std::uint64_t seed, DType dtype = DType::f32)
      : buffer(full({2}, static_cast<double>(seed))) {
    Rng rng(seed);
    for (const auto& [name, shape] : members) {
      Tensor value = empty(shape, dtype);
      fill_normal(value, 0, 1, rng.next());
      names.push_back(name);
      list.emplace_back(value);
    }
  }
  void visit(Visitor& v) override {
    for (std::size_t i = 0; i < list.size(); ++i) v(names[i], list[i]);
    v("running", buffer);
  }

  std::vector<std::string> names;
  std::vector<Parameter> list;
  Tensor buffer;
};

const std::vector<std::pair<std::string, Shape>> kMembers = {{"in.weight", {3, 5}}, {"in.bias", {5}}, {"out", {5, 2}}};

void random_grads(List& model, std::uint64_t seed) {
  Rng rng(seed);
  for (Parameter& p : model.list) {
    Tensor gradient = empty_like(p.value());
    fill_normal(gradient, 0, 1, rng.next());
    p.zero_grad();
    const Grad grad(&p.state()->grad);
    REQUIRE_FALSE(grad.claim());
    grad.tensor().copy_from(gradient);
  }
}

void train(List& model, Optimizer& optimizer, int from, int to) {
  for (int t = from; t < to; ++t) {
    random_grads(model, static_cast<std::uint64_t>(t));
    optimizer.step({.lr = 0.01});
  }
}

// A file that holds `model` with the given run text.
void write_file(const std::string& path, List& model, const std::string& run) {
  Hdf5Writer file(path);
  for (std::size_t i = 0; i < model.list.size(); ++i) file.write("parameters/" + model.names[i], model.list[i].value());
  file.write("buffers/running", model.buffer);
  file.write_text("run", run);
  file.commit();
}

}  // namespace

TEST_CASE("weights, buffers, moments, counters and the run come back bit for bit") {
  const TemporaryFolder folder;
  const std::string path = folder / "state.h5";
  List model(kMembers, 1);
  AdamW optimizer(parameters(model));
  train(model, optimizer, 0, 5);
  const RunState run{.config = {{"data", "bible.txt"}, {"odd", "quote \" newline \n Ünï"}},
                     .counters = {{"step", 5}, {"large", std::numeric_limits<std::int64_t>::max()}, {"negative", -3}},
                     .numbers = {{"third", 1.0 / 3},
                                 {"nan", std::bit_cast<double>(0xfff8000000001234ull)},
                                 {"inf", -std::numeric_limits<double>::infinity()},
                                 {"zero", -0.0},
                                 {"tiny", std::numeric_limits<double>::denorm_min()}}};
  save_training_state(path, model, &optimizer, run);
  const std::string saved = weights_hash(model);

  List other(kMembers, 2);
  AdamW resumed(parameters(other));
  CHECK(weights_hash(other) != saved);
  const RunState loaded = load_training_state(path, other, &resumed);
  CHECK(weights_hash(other) == saved);
  CHECK(other.buffer.at(0) == 1);
  CHECK(loaded.config == run.config);
  CHECK(loaded.counters == run.counters);
  REQUIRE(loaded.numbers.size() == run.numbers.size());
  for (const auto& [name, value] : run.numbers)
    CHECK(std::bit_cast<std::uint64_t>(loaded.numbers.at(name)) == std::bit_cast<std::uint64_t>(value));
  CHECK(read_run_state(path).counters == run.counters);
  CHECK(resumed.steps() == 5);

  train(model, optimizer, 5, 8);
  train(other, resumed, 5, 8);
  CHECK(weights_hash(other) == weights_hash(model));

  // Without an optimizer only weights and buffers are wanted.
  List weights(kMembers, 3);
  load_training_state(path, weights, nullptr);
  CHECK(weights_hash(weights) == saved);
}

TEST_CASE("gradients of an open window are saved with their flags") {
  const TemporaryFolder folder;
  const std::string path = folder / "state.h5";
  List model(kMembers, 1), other(kMembers, 2);
  AdamW optimizer(parameters(model)), resumed(parameters(other));
  train(model, optimizer, 0, 2);
  random_grads(model, 9);
  model.list[1].zero_grad();
  save_training_state(path, model, &optimizer, {});
  CHECK(model.list[0].has_grad());

  random_grads(other, 10);
  load_training_state(path, other, &resumed);
  CHECK(other.list[0].has_grad());
  CHECK_FALSE(other.list[1].has_grad());
  CHECK(same_bits(other.list[2].grad(), model.list[2].grad()));
  CHECK(optimizer.step({.lr = 0.1}).grad_norm == resumed.step({.lr = 0.1}).grad_norm);
  CHECK(weights_hash(other) == weights_hash(model));
}

TEST_CASE("weights_hash covers names, shapes, dtypes and every bit") {
  List model(kMembers, 1);
  const std::string hash = weights_hash(model);
  CHECK(hash.size() == 32);
  CHECK(hash.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(hash == weights_hash(model));
  List same(kMembers, 1);
  CHECK(hash == weights_hash(same));

  for (std::size_t i = 0; i < model.list.size(); ++i) {
    float* data = model.list[i].mutable_value().mutable_data<float>();
    float& last = data[model.list[i].numel() - 1];
    const float before = last;
    last = std::bit_cast<float>(std::bit_cast<std::uint32_t>(last) ^ 1u);
    CHECK(weights_hash(model) != hash);
    last = before;
  }
  CHECK(weights_hash(model) == hash);
  model.buffer.fill(7);
  CHECK(weights_hash(model) != hash);

  List renamed({{"in.weight", {3, 5}}, {"in.bias", {5}}, {"head", {5, 2}}}, 1);
  CHECK(weights_hash(renamed) != hash);
  List reshaped({{"in.weight", {5, 3}}, {"in.bias", {5}}, {"out", {5, 2}}}, 1);
  CHECK(weights_hash(reshaped) != hash);
  List zero({{"a", {2}}}, 0), zero_as_double({{"a", {1}}}, 0, DType::f64);
  zero.list[0].mutable_value().fill(0);
  zero_as_double.list[0].mutable_value().fill(0);
  CHECK(weights_hash(zero) != weights_hash(zero_as_double));
}

TEST_CASE("F08 many long names and a long configuration") {
  const TemporaryFolder folder;
  const std::string path = folder / "state.h5";
  std::vector<std::pair<std::string, Shape>> members;
  for (int i = 0; i < 2000; ++i) {
    std::string name = text_of("blocks.", i, ".");
    members.emplace_back(name + std::string(40 - name.size(), 'x'), Shape{2});
  }
  List model(members, 1), other(members, 2);
  AdamW optimizer(parameters(model)), resumed(parameters(other));
  train(model, optimizer, 0, 1);
  RunState run;
  run.config["text"] = std::string(200000, 'y');
  save_training_state(path, model, &optimizer, run);
  CHECK(load_training_state(path, other, &resumed).config == run.config);
  CHECK(weights_hash(other) == weights_hash(model));
}

TEST_CASE("F09 shape and key mismatches on load are all listed and change nothing") {
  const TemporaryFolder folder;
  const std::string path = folder / "state.h5";
  List model({{"a", {1, 64}}, {"b", {3}}, {"only_in_file", {2}}, {"d", {4}}}, 1);
  AdamW optimizer(parameters(model));
  train(model, optimizer, 0, 1);
  save_training_state(path, model, &optimizer, {});

  List other({{"a", {32, 64}}, {"b", {3}}, {"only_in_model", {2}}, {"d", {2, 2}}}, 2);
  AdamW resumed(parameters(other));
  train(other, resumed, 0, 2);
  const std::string before = weights_hash(other);
  const Tensor moment = resumed.state()[1].tensor.clone();
  const std::string error = message_of([&] { load_training_state(path, other, &resumed); });
  for (const char* part :
       {"state.h5", "parameters/a: the file holds f32 [1, 64], the model f32 [32, 64]",
        "parameters/d: the file holds f32 [4], the model f32 [2, 2]", "parameters/only_in_model: missing",
        "parameters/only_in_file: unexpected", "optimizer/m/a: ", "optimizer/v/only_in_model: missing",
        "optimizer/v/only_in_file: unexpected"})
    CHECK_MESSAGE(has(error, part), error);
  CHECK_FALSE(has(error, "parameters/b"));
  CHECK(weights_hash(other) == before);
  CHECK(same_bits(resumed.state()[1].tensor, moment));
  CHECK(resumed.steps() == 2);

  SUBCASE("another dtype") {
    List wide({{"a", {1, 64}}, {"b", {3}}, {"only_in_file", {2}}, {"d", {4}}}, 2, DType::f64);
    const std::string mistyped = message_of([&] { load_training_state(path, wide, nullptr); });
    CHECK_MESSAGE(has(mistyped, "parameters/b: the file holds f32 [3], the model f64 [3]"), mistyped);
  }
  SUBCASE("another optimizer") {
    List same({{"a", {1, 64}}, {"b", {3}}, {"only_in_file", {2}}, {"d", {4}}}, 2);
    Sgd sgd(parameters(same));
    const std::string mismatch = message_of([&] { load_training_state(path, same, &sgd); });
    CHECK_MESSAGE(has(mismatch, "the state of AdamW, not of Sgd"), mismatch);
  }
  SUBCASE("no optimizer state in the file") {
    const std::string bare = folder / "bare.h5";
    save_training_state(bare, other, nullptr, {});
    const std::string missing = message_of([&] { load_training_state(bare, other, &resumed); });
    CHECK_MESSAGE(has(missing, "optimizer: missing in the file"), missing);
  }
}

TEST_CASE("tied parameters are stored once and stay tied") {
  const TemporaryFolder folder;
  const std::string path = folder / "state.h5";
  const std::vector<std::pair<std::string, Shape>> members = {{"embedding", {4, 3}}, {"head", {4, 3}}};
  List model(members, 1), other(members, 2), untied(members, 3);
  tie(model.list[0], model.list[1]);
  tie(other.list[0], other.list[1]);
  AdamW optimizer(parameters(model)), resumed(parameters(other));
  train(model, optimizer, 0, 2);
  save_training_state(path, model, &optimizer, {});
  load_training_state(path, other, &resumed);
  CHECK(weights_hash(other) == weights_hash(model));

  // The further name can be read by any tool, and by a model without the tie.
  CHECK(same_bits(Hdf5Reader(path).read("parameters/head"), model.list[0].value()));
  load_training_state(path, untied, nullptr);
  CHECK(same_bits(untied.list[1].value(), model.list[0].value()));

  // Two different values cannot become one.
  List separate(members, 4);
  save_training_state(path, separate, nullptr, {});
  const std::string error = message_of([&] { load_training_state(path, other, nullptr); });
  CHECK_MESSAGE(has(error, "parameters/head: tied to embedding in the model, but not in the file"), error);
}

TEST_CASE("a cut or damaged file names itself and leaves the model unchanged") {
  const TemporaryFolder folder;
  const std::string path = folder / "state.h5", cut = folder / "cut.h5";
  List model(kMembers, 1), other(kMembers, 2);
  AdamW optimizer(parameters(model)), resumed(parameters(other));
  train(model, optimizer, 0, 2);
  save_training_state(path, model, &optimizer, {});
  const std::string bytes = read_file(path), before = weights_hash(other);
  std::vector<std::size_t> lengths = {0, 1, 7, 8, 96, bytes.size() - 1};
  for (std::size_t i = 1; i < 8; ++i) lengths.push_back(bytes.size() * i / 8);
  for (const std::size_t length : lengths) {
    CAPTURE(length);
    std::ofstream(cut, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(length));
    const std::string error = message_of([&] { load_training_state(cut, other, &resumed); });
    CHECK_MESSAGE(has(error, cut), error);
    CHECK(weights_hash(other) == before);
    CHECK(has(message_of([&] { read_run_state(cut); }), cut));
  }
  CHECK(has(message_of([&] { load_training_state(folder / "none.h5", other, &resumed); }), "none.h5"));

  SUBCASE("a damaged run part") {
    const std::string good = write_run_text({});
    for (const std::string& run :
         {std::string(), std::string("{"), std::string("[]"), std::string("{}"), good.substr(0, good.size() / 2),
          std::string(R"({"format": "tapestry training state", "version": 2})")}) {
      CAPTURE(run);
      write_file(path, model, run);
      CHECK(has(message_of([&] { load_training_state(path, other, nullptr); }), "the run part is damaged"));
      CHECK(weights_hash(other) == before);
    }
    write_file(path, model, good);
    load_training_state(path, other, nullptr);
    CHECK(weights_hash(other) == weights_hash(model));
  }
  SUBCASE("a folder that does not exist") {
    CHECK(has(message_of([&] { save_training_state(folder / "no/state.h5", model, &optimizer, {}); }), "state.h5"));
  }
  SUBCASE("configuration that is no text") {
    RunState run;
    run.config["name"] = "\xff\xfe";
    CHECK(has(message_of([&] { save_training_state(path, model, &optimizer, run); }), "UTF-8"));
    CHECK(read_file(path) == bytes);
  }
}

TEST_CASE("a state of another instruction set loads with a warning") {
  const TemporaryFolder folder;
  const std::string path = folder / "state.h5", log = folder / "stderr.txt";
  List model(kMembers, 1), other(kMembers, 2);
  write_file(path, model, write_run_text({.arch = "other-arch"}));
  std::fflush(stderr);
  const int original = dup(STDERR_FILENO);
  REQUIRE(std::freopen(log.c_str(), "w", stderr));
  load_training_state(path, other, nullptr);
  std::fflush(stderr);
  dup2(original, STDERR_FILENO);
  close(original);
  const std::string warning = read_file(log);
  CHECK_MESSAGE(has(warning, "other-arch"), warning);
  CHECK(has(warning, kArch));
  CHECK(weights_hash(other) == weights_hash(model));
}
