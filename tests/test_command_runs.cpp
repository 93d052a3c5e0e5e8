// Runs of the tapestry command that are cut short, and what it writes: interrupts, time budgets, samples, terminals.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/run_command.h"

using namespace tapestry;
using nlohmann::json;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string field(const std::string& text, const std::string& name) {
  const auto at = text.rfind(name + "=");
  REQUIRE(at != std::string::npos);
  const auto begin = at + name.size() + 1;
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

// The command that a stopped run tells to continue with.
std::string continuation(const std::string& text) {
  const std::string marker = "continue with: ";
  const auto at = text.find(marker);
  REQUIRE(at != std::string::npos);
  return text.substr(at + marker.size(), text.find('\n', at) - at - marker.size());
}

Ended run_in_shell(const std::string& command) { return Child({"/bin/sh", "-c", command}).end(); }

std::map<std::int64_t, double> learning_rates(const std::string& path) {
  std::map<std::int64_t, double> rates;
  for (const std::string& line : lines_of(content(path))) {
    const json entry = json::parse(line);
    if (!entry.contains("lr")) continue;
    CHECK(!rates.count(entry["step"]));
    rates[entry["step"]] = entry["lr"];
  }
  return rates;
}

Ended sample(const Workplace& place, const Words& more = {}) {
  return run(Words{"sample", "--checkpoint", place.path("out/checkpoint.h5"), "--tokens", "60"} + more);
}

}  // namespace

TEST_CASE("every optimizer trains, resumes to the unbroken run's bits, and an average of weights goes along") {
  Workplace place;
  for (const std::string optimizer :
       {"adamw", "adam", "sgd", "rmsprop", "adagrad", "adafactor", "lion", "lamb", "muon"}) {
    CAPTURE(optimizer);
    const Words options{"--optimizer", optimizer, "--ema", "0.9", "--lr_decay_iters", "12", "--eval_interval", "6"};
    const Ended unbroken = run(place.train("unbroken", options + Words{"--max_iters", "12"}));
    REQUIRE_MESSAGE(unbroken.code == 0, unbroken.err);
    REQUIRE(run(place.train("out", options + Words{"--max_iters", "5"})).code == 0);
    const Ended resumed = run({"train", "--resume", "--out_dir", place.path("out"), "--max_iters", "12"});
    REQUIRE_MESSAGE(resumed.code == 0, resumed.err);
    for (const std::string name : {"steps", "val_loss", "weights_hash"})
      CHECK(field(resumed.out, name) == field(unbroken.out, name));
  }
  CHECK(sample(place).code == 0);
  CHECK(run({"train", "--resume", "--out_dir", place.path("out"), "--optimizer", "sgd"}).code == 2);
}

TEST_CASE("Ctrl-C saves, says how to go on, and going on gives the unbroken run's bits") {
  Workplace place;
  const std::string folder = "it's out";
  for (const int signal : {SIGINT, SIGTERM}) {
    Child child(Words{tapestry_binary()} +
                place.train(folder, {"--max_iters", "100000", "--lr_decay_iters", "300", "--dropout", "0.1",
                                     "--eval_interval", "100000", "--log_interval", "10"}));
    REQUIRE(child.wait_for_out("step     20 "));
    child.kill(signal);
    const Ended ended = child.end();
    CAPTURE(ended.out);
    CHECK(ended.code == 128 + signal);
    CHECK(contains(ended.err, "stopping after this step"));
    CHECK(contains(lines_of(ended.out).back(), "result: steps="));
    const int steps = std::stoi(field(ended.out, "steps"));
    CHECK(steps >= 20);
    CHECK(contains(ended.out, "interrupted after " + std::to_string(steps) + " of 100000 steps"));

    const std::string last = std::to_string(steps + 5);
    const Ended resumed = run_in_shell(continuation(ended.out) + " --max_iters " + last);
    CAPTURE(resumed.err);
    CHECK(resumed.code == 0);
    CHECK(field(resumed.out, "steps") == last);
    const Ended unbroken = run(place.train("unbroken", {"--max_iters", last, "--lr_decay_iters", "300", "--dropout",
                                                        "0.1", "--log_interval", "10", "--eval_interval", "100000"}));
    CHECK(field(resumed.out, "weights_hash") == field(unbroken.out, "weights_hash"));
    CHECK(learning_rates(place.path(folder + "/metrics.jsonl")) ==
          learning_rates(place.path("unbroken/metrics.jsonl")));
  }
}

TEST_CASE("a second Ctrl-C ends at once") {
  Workplace place;
  Child child(Words{tapestry_binary()} + place.train("out", {"--gradient_accumulation_steps", "100000000"}));
  REQUIRE(child.wait_for_out("model:"));
  child.kill(SIGINT);
  REQUIRE(child.wait_for_err("stopping after this step"));
  child.kill(SIGINT);
  CHECK(child.end().signal == SIGINT);
  CHECK(!std::filesystem::exists(place.path("out/checkpoint.h5")));
}

TEST_CASE("a time budget stops early, says how to go on, and leaves the schedule alone") {
  Workplace place;
  const Ended ended = run(place.train("out", {"--max_iters", "10000000", "--lr_decay_iters", "400", "--time_budget",
                                              "0.5s", "--eval_interval", "10000000", "--log_interval", "1"}));
  CHECK(ended.code == 0);
  const std::string steps = field(ended.out, "steps");
  CHECK(contains(ended.out, "time budget used up after " + steps + " of 10000000 steps"));
  const std::string more = std::to_string(std::stoi(steps) + 3);
  const Ended resumed = run_in_shell(continuation(ended.out) + " --max_iters " + more);
  CHECK(field(resumed.out, "steps") == more);
  CHECK(!contains(resumed.out, "time budget"));

  const Ended unlimited =
      run(place.train("all", {"--max_iters", more, "--lr_decay_iters", "400", "--eval_interval", "100000"}));
  const auto rates = learning_rates(place.path("out/metrics.jsonl"));
  CHECK(static_cast<std::int64_t>(rates.size()) == std::stoi(more));
  CHECK(rates == learning_rates(place.path("all/metrics.jsonl")));
  CHECK(field(resumed.out, "weights_hash") == field(unlimited.out, "weights_hash"));
}

TEST_CASE("a run that was killed goes on from its last checkpoint, and metrics.jsonl has each step once") {
  Workplace place;
  Child child(Words{tapestry_binary()} + place.train("out", {"--max_iters", "100000", "--lr_decay_iters", "300"}));
  REQUIRE(child.wait_for_out("step     25 "));
  child.kill(SIGKILL);
  CHECK(child.end().signal == SIGKILL);
  const Ended resumed = run({"train", "--resume", "--out_dir", place.path("out"), "--max_iters", "5000",
                             "--time_budget", "0.2", "--eval_interval", "10"});
  CAPTURE(resumed.err);
  CHECK(resumed.code == 0);
  std::int64_t expected = 0;
  for (const auto& [step, lr] : learning_rates(place.path("out/metrics.jsonl"))) REQUIRE(step == ++expected);
  CHECK(expected == std::stoi(field(resumed.out, "steps")));
}

TEST_CASE("resuming a finished run changes nothing and says what would") {
  Workplace place;
  const Ended first = run(place.train("out"));
  const std::string log = content(place.path("out/metrics.jsonl"));
  const Ended again = run({"train", "--resume", "--out_dir", place.path("out")});
  CHECK(again.code == 0);
  CHECK(contains(again.out, "--max_iters"));
  CHECK(field(again.out, "weights_hash") == field(first.out, "weights_hash"));
  CHECK(content(place.path("out/metrics.jsonl")) == log);
}

TEST_CASE("a new run keeps the results of the run before") {
  Workplace place;
  run(place.train("out"));
  const std::string first = content(place.path("out/checkpoint.h5")), log = content(place.path("out/metrics.jsonl"));
  const Ended second = run(place.train("out", {"--seed", "5"}));
  CHECK(contains(second.out, "kept as " + place.path("out/checkpoint.previous.h5")));
  CHECK(content(place.path("out/checkpoint.previous.h5")) == first);
  CHECK(content(place.path("out/metrics.previous.jsonl")) == log);
  CHECK(content(place.path("out/checkpoint.h5")) != first);
}

TEST_CASE("sample: seeds, temperature, prompt, length") {
  Workplace place;
  REQUIRE(run(place.train("out", {"--max_iters", "150", "--learning_rate", "0.01"})).code == 0);
  const Ended one = sample(place, {"--prompt", "the loom", "--seed", "1"});
  CHECK(one.code == 0);
  CHECK(one.err == "");
  CHECK(one.out.rfind("the loom", 0) == 0);
  CHECK(one.out.size() == 8 + 60 + 1);  // context is 8, so most of it lies beyond
  CHECK(sample(place, {"--prompt", "the loom", "--seed", "1"}).out == one.out);
  CHECK(sample(place, {"--prompt", "the loom", "--seed", "1", "--threads", "3"}).out == one.out);
  CHECK(sample(place, {"--prompt", "the loom", "--seed", "2"}).out != one.out);

  const std::string greedy = sample(place, {"--temperature", "0", "--seed", "1"}).out;
  CHECK(greedy.size() == 61);
  CHECK(sample(place, {"--temperature", "0", "--seed", "2"}).out == greedy);
  CHECK(sample(place, {"--top_k", "1", "--seed", "3"}).out == greedy);
  CHECK(sample(place, {"--top_p", "1e-9", "--seed", "4"}).out == greedy);
  CHECK(sample(place, {"--prompt", "wool", "--tokens", "0"}).out == "wool\n");
}

TEST_CASE("sample: a text without line ends, and bytes as tokens") {
  Workplace place;
  std::string text = Workplace::english(3000);
  for (char& c : text) c = c == '\n' ? ' ' : c;
  write_content(place.text(), text);
  REQUIRE(run(place.train("out", {"--max_iters", "3"})).code == 0);
  CHECK(sample(place).out.size() == 61);

  REQUIRE(run(place.train("bytes", {"--max_iters", "3", "--tokenizer", "byte"})).code == 0);
  const std::string prompt = "☃";
  const Ended ended = run({"sample", "--checkpoint", place.path("bytes/checkpoint.h5"), "--prompt", prompt});
  CHECK(ended.code == 0);
  CHECK(ended.out.rfind(prompt, 0) == 0);
  CHECK(ended.out.size() == prompt.size() + 500 + 1);
}

TEST_CASE("output: plain lines elsewhere than on a terminal") {
  Workplace place;
  // An untrained model of bytes writes every control character.
  const Ended ended = run(place.train("out", {"--sample_tokens", "2000", "--tokenizer", "byte"}));
  CHECK(ended.err == "");
  CHECK(!contains(ended.out, "\x1b"));
  CHECK(!contains(ended.out, "\r"));
  CHECK(contains(ended.out, "    | "));
  CHECK(contains(ended.out, "\nstep     20  loss "));
  CHECK(contains(ended.out, "\nstep     20  val_loss "));
}

TEST_CASE("output: a bar on a terminal, in colour unless NO_COLOR says otherwise") {
  Workplace place;
  const auto shown = [&](const Words& environment) {
    const Ended ended = Child(Words{tapestry_binary()} + place.train("out", {"--max_iters", "200"}),
                              {.terminal = true, .environment = environment})
                            .end();
    CHECK(ended.code == 0);
    CHECK(contains(ended.out, "result: steps=200"));
    return ended.out;
  };
  const std::string colour = shown({"TERM=xterm", "NO_COLOR="});
  CHECK(contains(colour, "\r[\x1b[32m"));
  CHECK(contains(colour, "\x1b[1;36mstep "));
  CHECK(contains(colour, "/200  loss "));
  CHECK(contains(colour, "ETA 0:0"));
  const std::string plain = shown({"TERM=xterm", "NO_COLOR=1"});
  CHECK(contains(plain, "\r["));
  CHECK(!contains(plain, "\x1b[3"));
  CHECK(!contains(plain, "\x1b[1"));
  CHECK(!contains(shown({"TERM=dumb"}), "\x1b"));
}

TEST_CASE("output that cannot be written does not end the training") {
  Workplace place;
  const Ended ended =
      run_in_shell("exec " + tapestry_binary() + " train --data " + place.text() + " --out_dir " + place.path("out") +
                   " --n_layer 1 --n_embd 16 --block_size 8 --batch_size 2 --max_iters 30 --threads 1 "
                   "> /dev/full");
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  CHECK(std::filesystem::exists(place.path("out/checkpoint.h5")));
}

TEST_CASE("--detect_nan stops at a step that is not finite and names the op where it began, with its operands") {
  Workplace place;
  const Words diverging = {"--learning_rate", "1e15", "--min_lr", "0", "--dropout", "0.1", "--detect_nan"};
  const Ended ended = run(place.train("out", diverging + Words{"--gradient_accumulation_steps", "2"}));
  CAPTURE(ended.err);
  CHECK(ended.code == 1);
  CHECK(lines_of(ended.err).size() == 1);
  CHECK(ended.err.rfind("tapestry: step 2: the loss is nan and the gradient norm nan; NaN or inf begins in attention "
                        "after blocks.0.attention.qkv: output 0 f32 [2, 8, 16] ",
                        0) == 0);
  CHECK(contains(ended.err, ", first "));
  CHECK(contains(ended.err, "; input 0 f32 [2, 8, 48] from -"));
  CHECK(!std::filesystem::exists(place.path("out/checkpoint.h5")));

  const Ended fine = run(place.train("fine", {"--detect_nan"})), plain = run(place.train("plain"));
  CHECK(fine.code == 0);
  CHECK(field(fine.out, "weights_hash") == field(plain.out, "weights_hash"));
}

TEST_CASE("--monitor: a line for each step that overflows, tables, and the same weights") {
  Workplace place;
  const Ended overflow = run(place.train("out", {"--learning_rate", "1e15", "--monitor", "overflow"}));
  CHECK(overflow.code == 1);
  CHECK(contains(overflow.err, "10 steps in a row"));
  CHECK(!contains(overflow.out, "step 1: "));
  CHECK(contains(overflow.out, "\nstep 2: attention after blocks.0.attention.qkv: output 0 f32 [2, 8, 16] "));
  CHECK(contains(overflow.out, "\nstep 3: attention after blocks.0.attention.qkv: "));
  CHECK(contains(overflow.out, "\ntensors with NaN or inf"));
  CHECK(contains(overflow.out, "\ngradient of blocks.0.mlp.up.weight "));

  const Ended headroom = run(place.train("table", {"--monitor", "headroom:8"})), plain = run(place.train("plain"));
  CHECK(headroom.code == 0);
  CHECK(field(headroom.out, "weights_hash") == field(plain.out, "weights_hash"));
  int tables = 0;
  for (const std::string& line : lines_of(headroom.out)) tables += line.rfind("headroom ", 0) == 0;
  CHECK(tables == 3);  // after 8, 16 and 20 steps
  CHECK(contains(headroom.out, "\nlayernorm at blocks.0.norm1 "));
  // The next part of a run decides anew what it watches.
  const Ended resumed = run({"train", "--resume", "--out_dir", place.path("table"), "--max_iters", "22"});
  CHECK(!contains(resumed.out, "headroom"));
  CHECK(contains(run(place.train("quiet", {"--monitor", "overflow"})).out, "\nmonitor: no tensor had NaN or inf\n"));

  for (const std::string wrong : {"", "headroom:", "headroom:0", "headroom:x", "headrooms", "overflow:3"}) {
    const Ended refused = run(place.train("wrong", {"--monitor=" + wrong}));
    CHECK(refused.code == 2);
    CHECK(contains(refused.err, "--monitor must be none, overflow, headroom or headroom:STEPS, not '"));
  }
}

TEST_CASE("train with a loss scale: shown, stored, resumed exactly, and not to be changed") {
  Workplace place;
  const auto call = [&](const std::string& folder, const Words& more) {
    const Ended ended = run(place.train(folder, Words{"--max_iters", "20", "--lr_decay_iters", "20", "--dropout", "0.1",
                                                      "--grad_scaler", "dynamic:1024", "--skip_outliers", "8",
                                                      "--clip_value", "0.5", "--gradient_accumulation_steps", "2"} +
                                                    more));
    CAPTURE(ended.err);
    REQUIRE(ended.code == 0);
    return ended.out;
  };
  const std::string unbroken = call("a", {});
  CHECK(contains(unbroken, "precision: f32, dynamic loss scale from 1024\n"));
  CHECK(contains(unbroken, "scale 1024"));
  CHECK(contains(unbroken, "grad_norm"));
  call("b", {"--max_iters", "10"});
  const Ended resumed = run({"train", "--resume", "--out_dir", place.path("b"), "--max_iters", "20"});
  REQUIRE(resumed.code == 0);
  CHECK(field(resumed.out, "weights_hash") == field(unbroken, "weights_hash"));
  for (const std::string& line : lines_of(content(place.path("b/metrics.jsonl")))) {
    const json entry = json::parse(line);
    if (entry.contains("loss")) CHECK((entry["scale"] == 1024 && entry["skipped_steps"] == 0));
  }
  // A power of two changes no bit.
  CHECK(field(call("c", {"--grad_scaler", "none"}), "weights_hash") == field(unbroken, "weights_hash"));
  CHECK(field(call("d", {"--grad_scaler", "static"}), "weights_hash") == field(unbroken, "weights_hash"));
  // In 16 bits too, with the scale falling on the way, and watched without a change of bits.
  for (const std::string dtype : {"f16", "bf16"}) {
    const Words low{"--dtype", dtype, "--grad_scaler", "dynamic:16777216"};
    const std::string whole = call(dtype, low);
    CHECK(contains(whole, "precision: " + dtype + ", dynamic loss scale from 16777216\n"));
    CHECK(contains(whole, "step skipped, the scale is now 8388608") == (dtype == "f16"));
    CHECK(field(whole, "weights_hash") != field(unbroken, "weights_hash"));
    call(dtype + "-half", low + Words{"--max_iters", "10"});
    const Ended rest = run({"train", "--resume", "--out_dir", place.path(dtype + "-half"), "--max_iters", "20"});
    CHECK(field(rest.out, "weights_hash") == field(whole, "weights_hash"));
    CHECK(field(call(dtype + "-watched", low + Words{"--detect_nan", "--monitor", "overflow"}), "weights_hash") ==
          field(whole, "weights_hash"));
  }
  const Ended changed = run({"train", "--resume", "--out_dir", place.path("b"), "--grad_scaler", "none"});
  CHECK(changed.code == 2);
  CHECK(contains(changed.err, "--resume cannot change grad_scaler (was dynamic:1024, now none)"));
}
