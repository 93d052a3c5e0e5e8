// What the tapestry command is given and cannot use: one line on stderr, an exit code, and nothing lost.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "layers/models/gpt.h"
#include "optim/adam.h"
#include "optim/training_state.h"
#include "tests/run_command.h"

using namespace tapestry;
using nlohmann::json;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void check_error(const Ended& ended, int code, const Words& expected) {
  CAPTURE(ended.out);
  CAPTURE(ended.err);
  CHECK(ended.code == code);
  CHECK(lines_of(ended.err).size() == 1);
  CHECK(ended.err.rfind("tapestry: ", 0) == 0);
  for (const std::string& part : expected) {
    CAPTURE(part);
    CHECK(contains(ended.err, part));
  }
}

Words resume(const Workplace& place, const Words& more = {}) {
  return Words{"train", "--resume", "--out_dir", place.path("out")} + more;
}

Words sample(const Workplace& place, const Words& more = {}) {
  return Words{"sample", "--tokens", "5", "--checkpoint", place.path("out/checkpoint.h5")} + more;
}

// A checkpoint that says it is like `path` but holds another model.
void put_other_model(const std::string& path, std::int64_t width, std::int64_t layers) {
  const RunState run = read_run_state(path);
  Gpt other({.vocabulary = 30, .context = 8, .layers = layers, .heads = 2, .width = width}, 1);
  AdamW optimizer(parameters(other), {});
  save_training_state(path, other, &optimizer, run);
}

}  // namespace

TEST_CASE("data: missing, empty, a folder, not UTF-8, too short") {
  Workplace place;
  const auto with = [&](const std::string& text, const Words& more = {}) {
    write_content(place.text(), text);
    return run(place.train("out", more));
  };
  check_error(run({"train"}), 2, {"--data is missing"});
  check_error(run({"train", "--data", place.path("none.txt")}), 1, {place.path("none.txt"), "No such file"});
  check_error(run({"train", "--data", place.path("")}), 1, {"it is a folder"});
  check_error(with(""), 1, {place.text(), "empty"});
  check_error(with(Workplace::english(1000) + "\xff and more"), 1, {place.text(), "UTF-8", "byte 100"});
  check_error(with("short"), 2, {place.text(), "5 tokens", "--block_size 8", "use a longer text"});
  check_error(with(Workplace::english(500), {"--block_size", "100"}), 2, {"block_size of at most 49"});
  CHECK(!std::filesystem::exists(place.path("out")));
  const std::size_t length = Workplace::english(500).size();
  CHECK(with(Workplace::english(500), {"--block_size", std::to_string(length / 10 - 1)}).code == 0);
}

TEST_CASE("options: out of range, and heads that do not divide the width") {
  Workplace place;
  const auto refuse = [&](const Words& options, const Words& expected) {
    const Ended ended = run(place.train("out", options));
    check_error(ended, 2, expected);
    CHECK(ended.out == "");
  };
  refuse({"--n_embd", "512", "--n_head", "7"}, {"7 heads do not divide width 512 (512 = 7*73 + 1)", "use 1, 2, 4, 8"});
  for (const std::string option : {"n_layer", "n_head", "n_embd", "block_size", "batch_size", "max_iters",
                                   "eval_interval", "eval_iters", "log_interval", "gradient_accumulation_steps"})
    refuse({"--" + option, "0"}, {"--" + option + " must be 1 or more, not 0"});
  for (const std::string option : {"learning_rate", "min_lr", "weight_decay", "grad_clip", "clip_value",
                                   "skip_outliers", "warmup_iters", "threads", "sample_tokens", "head_dim"})
    refuse({"--" + option, "-1"}, {"--" + option + " must be 0 or more, not -1"});
  for (const std::string option : {"dropout", "beta1", "beta2"})
    for (const std::string value : {"-0.1", "1", "1.5"}) refuse({"--" + option, value}, {"--" + option, "below 1"});
  refuse({"--learning_rate", "1e-5"}, {"--min_lr must be at most --learning_rate, 1e-05, not 0.0001"});
  refuse({"--dtype", "f64"}, {"--dtype must be f32 or bf16 or f16"});
  for (const std::string value : {"on", "dynamic:", "dynamic:x", "static:0", "static:-1", "static:nan", "static:inf",
                                  "none:3", "static:1e", "dynamic:1e30"})
    refuse({"--grad_scaler", value}, {"--grad_scaler must be auto, none, dynamic", value});
  refuse({"--activation", "swish"}, {"swish", "gelu_tanh"});
  refuse({"--norm", "mid"}, {"--norm must be pre or post"});
  refuse({"--tokenizer", "bpe"}, {"--tokenizer must be char or byte"});
  check_error(run(place.train("out", {"--n_embd", "10000000"})), 1, {"parameters", "GB of memory"});
  check_error(run(place.train("out", {"--batch_size", "100000000000"})), 1, {"batches of 800000000000 tokens"});
  check_error(run(place.train("out", {"--batch_size", "9000000000000000000"})), 1, {"GB of memory"});
  CHECK(!std::filesystem::exists(place.path("out")));
  CHECK(run(place.train("out", {"--n_head", "3", "--head_dim", "5", "--max_iters", "1"})).code == 0);
}

TEST_CASE("out_dir: below a file, a file itself, a name that is no text") {
  Workplace place;
  check_error(run(place.train("text.txt/out")), 1, {"--out_dir", "text.txt/out", "Not a directory"});
  check_error(run(place.train("text.txt")), 1, {"--out_dir", "text.txt", "Not a directory"});
  CHECK(content(place.text()) == Workplace::english(20000));
  check_error(run(place.train("\xff")), 2, {"--out_dir", "UTF-8"});
  check_error(run(place.train("out", {"--data", place.path("\xff.txt")})), 2, {"--data", "UTF-8"});
}

TEST_CASE("sample: options and prompts it cannot use") {
  Workplace place;
  REQUIRE(run(place.train("out", {"--max_iters", "2"})).code == 0);
  check_error(run(sample(place, {"--temperature", "-1"})), 2, {"temperature must be 0 or more, not -1"});
  check_error(run(sample(place, {"--top_p", "0"})), 2, {"top_p must be in (0, 1], not 0"});
  check_error(run(sample(place, {"--top_p", "1.1"})), 2, {"top_p"});
  check_error(run(sample(place, {"--top_k", "-1"})), 2, {"top_k"});
  check_error(run(sample(place, {"--tokens", "-1"})), 2, {"--tokens must be 0 or more, not -1"});
  check_error(run(sample(place, {"--threads", "-1"})), 2, {"--threads"});
  check_error(run(sample(place, {"--prompt", "the ☃"})), 2, {"--prompt", "U+2603 '☃'", "byte 4"});
  check_error(run(sample(place, {"--prompt", "\xff"})), 2, {"--prompt", "UTF-8"});
  CHECK(run(sample(place, {"--prompt", "\xff"})).out == "");
  check_error(run({"sample", "--checkpoint", place.path("none.h5")}), 1, {"none.h5", "No such file"});
  check_error(run({"sample", "--checkpoint", place.text()}), 1, {"text.txt"});
}

TEST_CASE("F07 a checkpoint cut anywhere") {
  Workplace place;
  REQUIRE(run(place.train("out", {"--max_iters", "2"})).code == 0);
  const std::string path = place.path("out/checkpoint.h5"), whole = content(path);
  std::vector<std::size_t> cuts = {0, 1, 7, 8, 96, 511, 512, whole.size() - 1};
  for (std::size_t i = 1; i < 8; ++i) cuts.push_back(whole.size() * i / 8);
  for (const std::size_t cut : cuts) {
    CAPTURE(cut);
    write_content(path, whole.substr(0, cut));
    check_error(run(sample(place)), 1, {path, "truncated or corrupt"});
  }
  check_error(run(resume(place)), 1, {path, "truncated or corrupt"});
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 1);
  write_content(path, flipped);
  check_error(run(sample(place)), 1, {path, "truncated or corrupt"});

  // The checkpoint of the run before is offered, and a new run does not replace it by the damaged one.
  const std::string previous = place.path("out/checkpoint.previous.h5");
  CHECK(!contains(run(sample(place)).err, "previous"));
  write_content(previous, whole);
  check_error(run(sample(place)), 1, {"still there: " + previous});
  check_error(run(resume(place)), 1, {"still there: " + previous});
  CHECK(run({"sample", "--tokens", "5", "--checkpoint", previous}).code == 0);
  const Ended anew = run(place.train("out", {"--max_iters", "2"}));
  CHECK(anew.code == 0);
  CHECK(contains(anew.out, "damaged"));
  CHECK(content(previous) == whole);
  CHECK(run(sample(place)).code == 0);
}

TEST_CASE("F09 a checkpoint of another architecture: all mismatches, nothing changed") {
  Workplace place;
  REQUIRE(run(place.train("out", {"--max_iters", "2"})).code == 0);
  const std::string path = place.path("out/checkpoint.h5");
  put_other_model(path, 12, 2);
  const std::string other = content(path);
  const Words expected = {
      "token_embedding.weight", "blocks.0.attention.qkv.weight", "[12, 36]",   "[16, 48]",
      "blocks.0.mlp.up.weight", "blocks.1.norm1.weight",         "unexpected", "parameters/norm.bias: the file"};
  check_error(run(sample(place)), 1, expected);
  check_error(run(resume(place)), 1, expected);
  CHECK(content(path) == other);
}

TEST_CASE("resume: no checkpoint, another text, other options") {
  Workplace place;
  check_error(run(place.train("out", {"--resume"})), 1, {"out/checkpoint.h5", "nothing to resume"});
  REQUIRE(run(place.train("out", {"--max_iters", "2"})).code == 0);
  const std::string before = content(place.path("out/checkpoint.h5")), log = content(place.path("out/metrics.jsonl"));

  check_error(
      run(resume(place, {"--n_embd", "32", "--n_layer=2", "--seed", "1"})), 2,
      {"--resume cannot change", "n_embd (was 16, now 32)", "n_layer (was 1, now 2)", "seed (was 1337, now 1)"});
  for (const std::string& text : {Workplace::english(30000), "other letters: " + Workplace::english(20000)}) {
    write_content(place.path("other.txt"), text);
    check_error(run(resume(place, {"--data", place.path("other.txt")})), 1,
                {"other.txt", "is not the text that", "--data must name that text"});
  }
  CHECK(content(place.path("out/checkpoint.h5")) == before);
  CHECK(content(place.path("out/metrics.jsonl")) == log);
  // What is the same in another spelling is no change.
  CHECK(run(resume(place, {"--n_embd", "016", "--bias=1", "--max_iters", "3"})).code == 0);
}

TEST_CASE("F03 a full disk while saving: the old checkpoint stays") {
  Workplace place;
  REQUIRE(run(place.train("out")).code == 0);
  const std::string path = place.path("out/checkpoint.h5"), before = content(path);
  const Ended ended = run(resume(place, {"--max_iters", "40"}), {.file_size_limit = before.size() / 2});
  check_error(ended, 1, {path, "cannot write", "File too large", "old file is unchanged"});
  CHECK(contains(ended.out, "warning: not saved at step 30: "));
  CHECK(contains(ended.out, "step     40  loss"));
  CHECK(content(path) == before);
  for (const auto& entry : std::filesystem::directory_iterator(place.path("out")))
    CHECK(!contains(entry.path().filename(), ".tmp"));
  CHECK(run(sample(place)).code == 0);
  CHECK(run(resume(place, {"--max_iters", "40"})).code == 0);
}

TEST_CASE("F03 metrics.jsonl that cannot grow: one warning, and training goes on") {
  Workplace place;
  REQUIRE(run(place.train("out")).code == 0);
  const std::size_t limit = std::filesystem::file_size(place.path("out/checkpoint.h5")) + 2000;
  const Ended ended = run(resume(place, {"--max_iters", std::to_string(limit / 60), "--eval_interval", "100000"}),
                          {.file_size_limit = limit});
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  CHECK(contains(ended.out, "result: steps=" + std::to_string(limit / 60)));
  const std::string warning = "metrics.jsonl cannot be written";
  REQUIRE(contains(ended.out, warning));
  CHECK(ended.out.find(warning) == ended.out.rfind(warning));
  const std::string log = content(place.path("out/metrics.jsonl"));
  CHECK(log.size() > limit - 300);
  CHECK(log.back() == '\n');
  for (const std::string& line : lines_of(log)) CHECK(json::accept(line));
}
