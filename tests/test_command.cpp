// The tapestry command as a user meets it: options, training, resuming, interrupting, sampling, output.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "autograd/autocast.h"
#include "core/io/hdf5_file.h"
#include "tests/run_command.h"

using namespace tapestry;
using nlohmann::json;

namespace {

// The fields of the last line, which must be a complete result.
std::map<std::string, std::string> result_of(const Ended& ended) {
  const std::string digits = "0123456789";
  const std::pair<std::string, std::string> form[] = {
      {"steps", digits},        {"train_loss", digits + "."},        {"val_loss", digits + "."},
      {"tokens_per_s", digits}, {"weights_hash", digits + "abcdef"}, {"checkpoint", ""}};
  std::istringstream line(lines_of(ended.out).back());
  std::string word;
  line >> word;
  REQUIRE(word == "result:");
  std::map<std::string, std::string> fields;
  for (const auto& [name, characters] : form) {
    line >> word;
    CAPTURE(word);
    REQUIRE(word.rfind(name + "=", 0) == 0);
    const std::string value = word.substr(name.size() + 1);
    CHECK(!value.empty());
    if (!characters.empty()) CHECK(value.find_first_not_of(characters) == std::string::npos);
    fields[name] = value;
  }
  CHECK(line.eof());
  CHECK(fields["weights_hash"].size() == 32);
  return fields;
}

std::map<std::string, std::string> train(const Words& arguments) {
  const Ended ended = run(arguments);
  CAPTURE(ended.err);
  REQUIRE(ended.code == 0);
  return result_of(ended);
}

// Every line as JSON; steps of training lines must be 1, 2, ... without a gap, at log_interval 1.
std::vector<json> metrics(const std::string& path) {
  std::vector<json> entries;
  for (const std::string& line : lines_of(content(path))) {
    const json entry = json::parse(line, nullptr, false);
    CAPTURE(line);
    REQUIRE(entry.is_object());
    entries.push_back(entry);
  }
  return entries;
}

std::vector<std::int64_t> steps_with(const std::vector<json>& entries, const char* key) {
  std::vector<std::int64_t> steps;
  for (const json& entry : entries)
    if (entry.contains(key)) steps.push_back(entry["step"]);
  return steps;
}

std::vector<std::int64_t> every(std::int64_t stride, std::int64_t last) {
  std::vector<std::int64_t> steps;
  for (std::int64_t i = stride; i <= last; i += stride) steps.push_back(i);
  return steps;
}

// Equal names, shapes and bits in every group that a training state has.
void check_equal_tensors(const std::string& a_path, const std::string& b_path) {
  const Hdf5Reader a(a_path), b(b_path);
  std::size_t compared = 0;
  for (const std::string group : {"parameters", "optimizer"}) {
    REQUIRE(a.names(group) == b.names(group));
    for (const std::string& name : a.names(group)) {
      const Tensor x = a.read(group + "/" + name), y = b.read(group + "/" + name);
      CAPTURE(name);
      REQUIRE(x.shape() == y.shape());
      CHECK(std::memcmp(x.raw_data(), y.raw_data(), static_cast<std::size_t>(x.bytes())) == 0);
      ++compared;
    }
  }
  CHECK(compared > 30);
}

void check_usage_error(const Ended& ended, const std::string& expected) {
  CAPTURE(ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.out == "");
  CHECK(lines_of(ended.err).size() == 1);
  CHECK(ended.err.find(expected) != std::string::npos);
}

}  // namespace

TEST_CASE("options: '-' or '_', a word or '='") {
  // A refused value shows which option it reached, without any training.
  const std::string expected = "--n_layer must be 1 or more, not -7\n";
  for (const Words& spelling : {Words{"--n_layer", "-7"}, Words{"--n_layer=-7"}, Words{"--n-layer", "-7"},
                                Words{"--n-layer=-7"}, Words{"--n_layer=3", "--n-layer=-7"}})
    check_usage_error(run(Words{"train", "--data", "x"} + spelling), expected);
  check_usage_error(run({"train", "--data", "x", "--n_layer"}), "--n_layer needs a value");
  check_usage_error(run({"train", "--data", "--resume"}), "--data needs a value");
  check_usage_error(run({"train", "--data", "x", "word"}), "'word' is not expected here");
}

TEST_CASE("options: a value that looks like something else") {
  Workplace place;
  train(place.train("out"));
  // A prompt with dashes, brackets or an equals sign arrives as it is.
  for (const std::string prompt : {"--hello", "[a,b]", "=", "--a=b"})
    check_usage_error(run({"sample", "--checkpoint", place.path("out/checkpoint.h5"), "--prompt", prompt}),
                      "--prompt: ");
  const Ended empty = run({"sample", "--checkpoint", place.path("out/checkpoint.h5"), "--prompt=", "--tokens", "3"});
  CHECK(empty.code == 0);
}

TEST_CASE("options: a number that is none") {
  const auto refuse = [](const std::string& option, const std::string& value, const std::string& expected) {
    check_usage_error(run({"train", "--data", "x", "--" + option, value}), expected);
  };
  for (const std::string value : {"abc", "3x", "", "1.5", "1e3"})
    refuse("n_embd", value, "--n_embd must be a whole number, not '" + value + "'");
  refuse("seed", "-1", "--seed must be a whole number of 0 or more, not '-1'");
  refuse("n_layer", "99999999999999999999", "--n_layer: 99999999999999999999 is too large");
  refuse("learning_rate", "fast", "--learning_rate must be a number, not 'fast'");
  refuse("learning_rate", "nan", "--learning_rate must be 0 or more, not nan");
  refuse("bias", "maybe", "--bias must be true or false, not 'maybe'");
  refuse("resume=maybe", "--n_layer=1", "--resume must be true or false, not 'maybe'");
  for (const std::string value : {"3d", "-1s", "s", "inf"}) refuse("time_budget", value, "is not a duration");
}

TEST_CASE("options: what is unknown suggests the nearest") {
  check_usage_error(run({"trian"}), "did you mean train?");
  check_usage_error(run({"train", "--learning-rte=3"}), "did you mean --learning_rate?");
  check_usage_error(run({"train", "--batchsize", "3"}), "did you mean --batch_size?");
  check_usage_error(run({"sample", "--temprature", "1"}), "did you mean --temperature?");
  check_usage_error(run({"info", "--halp"}), "did you mean --help?");
  check_usage_error(run({"train", "--qqqqqqqqqqqq"}), "tapestry train --help lists them all");
}

TEST_CASE("config file: spellings, comments, quotes, and the command line wins") {
  Workplace place;
  const std::string config = place.path("run.cfg");
  const auto with = [&](const std::string& text, const Words& more = {}) {
    write_content(config, text);
    return run(Words{"train", "--data", "x", "--config", config} + more);
  };
  const std::string expected = "--n_layer must be 1 or more, not -7\n";
  for (const std::string text : {"n_layer = -7", "n-layer=-7\n", "# first\n\n  n_layer = -7  # last\r\n",
                                 "n_layer = \"-7\" # quoted", "n_layer='-7'", "n_layer = 3\nn_layer = -7"})
    check_usage_error(with(text), expected);
  check_usage_error(with("n_layer = 3", {"--n_layer", "-7"}), expected);
  check_usage_error(run({"train", "--n_layer", "-7", "--data", "x", "--config", config}), expected);
  check_usage_error(with("n_layer = -7", {"--n_embd=abc"}), "--n_embd must be");

  check_usage_error(with("n_layer 3"), config + ":1: a line must be 'key = value', not 'n_layer 3'");
  check_usage_error(with("\n# x\nn_leyer = 3"), config + ":3: key 'n_leyer' is unknown (did you mean n_layer?)");
  check_usage_error(with("data = 'a#b"), config + ":1: the quote ' is not closed");
  check_usage_error(with("data = 'a' b"), config + ":1: 'b' follows the value");
  check_usage_error(with("config = other"), "belongs on the command line");
  check_usage_error(run({"train", "--config", place.path("none.cfg")}), "none.cfg: No such file");
  check_usage_error(run({"train", "--config", place.path("")}), "it is a folder");
  write_content(config, "data = 'a#b.txt'");
  CHECK(run({"train", "--config", config}).err.find("a#b.txt: No such file") != std::string::npos);
}

TEST_CASE("config file: the run is the one its options give") {
  Workplace place;
  const auto expected = train(place.train("a", {"--n_layer", "2", "--learning_rate", "0.01", "--bias", "false"}));
  write_content(place.path("run.cfg"), "n-layer = 2\nlearning_rate = 1e-2\nbias = False\n");
  CHECK(train(place.train("b", {"--config", place.path("run.cfg")}))["weights_hash"] !=
        expected.at("weights_hash"));  // n_layer stands on the command line as 1
  Words arguments = place.train("c", {"--config", place.path("run.cfg")});
  arguments.erase(std::find(arguments.begin(), arguments.end(), "--n_layer") + 1);
  arguments.erase(std::find(arguments.begin(), arguments.end(), "--n_layer"));
  CHECK(train(arguments)["weights_hash"] == expected.at("weights_hash"));
}

TEST_CASE("help, version, info") {
  for (const Words& call :
       {Words{"--help"}, Words{"-h"}, Words{"help"}, Words{"--version"}, Words{"info"}, Words{"train", "--help"},
        Words{"train", "-h"}, Words{"sample", "--help"}, Words{"gradcheck", "--help"}, Words{"info", "--help"},
        Words{"bench", "--help"}, Words{"bench", "step", "--help"}, Words{"bench", "gemm", "--help"},
        Words{"bench", "scaling", "--help"}}) {
    const Ended ended = run(call);
    CHECK(ended.code == 0);
    CHECK(ended.err == "");
    CHECK(ended.out.size() > 10);
    for (const std::string& line : lines_of(ended.out)) CHECK(line.size() <= 100);
  }
  const std::string help = run({"train", "--help"}).out;
  for (const std::string option :
       {"--data", "--resume", "--time_budget", "--config", "--n_layer NUMBER=4", "--n_embd NUMBER=128",
        "--block_size NUMBER=64", "--batch_size NUMBER=12", "--learning_rate NUMBER=0.001", "--max_iters NUMBER=2000",
        "--warmup_iters NUMBER=100", "--min_lr NUMBER=0.0001", "--weight_decay NUMBER=0.1", "--beta2 NUMBER=0.99",
        "--eval_interval NUMBER=250", "--eval_iters NUMBER=20", "--seed NUMBER=1337", "--out_dir TEXT=out"})
    CHECK(help.find(option) != std::string::npos);
  CHECK(run({}).code == 2);
  const std::string types = run({"info", "--autocast"}).out;
  for (const CastPolicyRow& row : kCastPolicies) {
    CHECK(types.find(row.meaning) != std::string::npos);
    for_each_op(row, [&](std::string_view op) { CHECK(types.find(text_of(" ", op)) != std::string::npos); });
  }
  const std::string info = run({"info"}).out;
  for (const std::string field : {"version", "compiler", "instruction set", "threads", "HDF5", "GPU"})
    CHECK(info.find(field) != std::string::npos);
}

TEST_CASE("gradcheck: list, filter, suggestion") {
  const Ended list = run({"gradcheck", "--list"});
  CHECK(list.code == 0);
  CHECK(lines_of(list.out).size() > 100);
  const Ended some = run({"gradcheck", "--list", "--filter", "softmax"});
  CHECK(lines_of(some.out).size() > 1);
  for (const std::string& line : lines_of(some.out)) CHECK(line.find("softmax") != std::string::npos);
  const Ended ran = run({"gradcheck", "--filter", "softmax"});
  CHECK(ran.code == 0);
  CHECK(lines_of(ran.out).size() == lines_of(some.out).size() + 2);
  CHECK(ran.out.find("\nnot in bf16 and f16: softmax [2, 33] shifted by 1e4: bf16 rounds") != std::string::npos);
  CHECK(lines_of(ran.out).back().find(std::to_string(lines_of(some.out).size()) + " passed, 0 failed") !=
        std::string::npos);
  CHECK(lines_of(ran.out).back().find("0 skipped; ") != std::string::npos);
  CHECK(run({"gradcheck", "--filter", "softmax [1]", "--seed", "7"}).code == 0);
  check_usage_error(run({"gradcheck", "--filter", "softmux"}), "did you mean softmax?");
  check_usage_error(run({"gradcheck", "--list", "--filter", "softmux"}), "did you mean softmax?");
}

TEST_CASE("train: result line, checkpoint and metrics") {
  Workplace place;
  auto result = train(place.train("a/b", {"--max_iters", "20", "--learning_rate", "0.01"}));
  CHECK(result["steps"] == "20");
  CHECK(result["checkpoint"] == place.path("a/b/checkpoint.h5"));
  CHECK(std::filesystem::exists(result["checkpoint"]));
  const auto entries = metrics(place.path("a/b/metrics.jsonl"));
  CHECK(steps_with(entries, "loss") == every(1, 20));
  CHECK(steps_with(entries, "val_loss") == every(10, 20));
  for (const json& entry : entries)
    if (entry.contains("loss"))
      for (const char* key : {"lr", "grad_norm", "tokens_per_s"}) CHECK(entry[key].get<double>() > 0);
  CHECK(entries.back()["val_loss"].get<double>() < entries[10]["val_loss"].get<double>());
}

TEST_CASE("F01 same bits: 1, 2 and 3 threads, with dropout") {
  Workplace place;
  std::set<std::string> hashes;
  for (const std::string threads : {"1", "2", "3"})
    hashes.insert(train(place.train("t" + threads, {"--threads", threads, "--max_iters", "50", "--dropout", "0.1",
                                                    "--n_embd", "32", "--block_size", "16", "--batch_size", "6"}))
                      .at("weights_hash"));
  CHECK(hashes.size() == 1);
  CHECK(hashes != std::set{train(place.train("s", {"--seed", "2", "--max_iters", "50"})).at("weights_hash")});
}

TEST_CASE("F01 20 steps equal 10, a new process, and 10; saving changes nothing") {
  Workplace place;
  for (const std::string accumulate : {"1", "2"}) {
    CAPTURE(accumulate);
    const auto call = [&](const std::string& out, const Words& more) {
      return train(place.train(out, Words{"--dropout", "0.1", "--lr_decay_iters", "20", "--n_layer", "2",
                                          "--gradient_accumulation_steps", accumulate} +
                                        more));
    };
    const auto unbroken = call("a" + accumulate, {"--eval_interval", "7"});
    const auto half = call("b" + accumulate, {"--max_iters", "10", "--eval_interval", "10"});
    const auto resumed = train({"train", "--resume", "--out_dir", place.path("b" + accumulate), "--max_iters", "20"});
    CHECK(half.at("weights_hash") != unbroken.at("weights_hash"));
    CHECK(resumed.at("steps") == "20");
    CHECK(resumed.at("weights_hash") == unbroken.at("weights_hash"));
    CHECK(resumed.at("val_loss") == unbroken.at("val_loss"));
    check_equal_tensors(resumed.at("checkpoint"), unbroken.at("checkpoint"));
    CHECK(steps_with(metrics(place.path("b" + accumulate + "/metrics.jsonl")), "loss") == every(1, 20));
    CHECK(steps_with(metrics(place.path("b" + accumulate + "/metrics.jsonl")), "val_loss") == every(10, 20));
  }
}
