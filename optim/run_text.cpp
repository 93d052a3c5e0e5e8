// The JSON text of a training state. A double is written twice: as a number for people and tools, and as the 16
// hexadecimal digits of its bits, which also keep NaN and infinity.
#include "optim/run_text.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tapestry {

namespace {

using nlohmann::json;

constexpr const char kFormat[] = "tapestry training state";
constexpr int kFormatVersion = 1;

json number_to_json(double value) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(value)));
  return {{"value", value}, {"bits", digits}};
}

double number_from_json(const json& number) {
  const std::string digits = number.at("bits").get<std::string>();
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  TAP_CHECK(digits.size() == 16 && error == std::errc() && end == digits.data() + 16, "\"", digits,
            "\" is not 16 hexadecimal digits");
  return std::bit_cast<double>(bits);
}

std::int64_t count_from_json(const json& number) {
  TAP_CHECK(number.is_number_integer() && number.get<std::int64_t>() >= 0, number.dump(), " is not a count");
  return number.get<std::int64_t>();
}

Optimizer::Counters counters_from_json(const json& optimizer) {
  Optimizer::Counters counters;
  counters.steps = count_from_json(optimizer.at("steps"));
  if (optimizer.contains("skipped")) counters.skipped = count_from_json(optimizer.at("skipped"));
  counters.skipped_in_a_row = count_from_json(optimizer.at("skipped_in_a_row"));
  for (const auto& [name, updates] : optimizer.at("updates").items()) counters.updates[name] = count_from_json(updates);
  return counters;
}

RunText from_json(const json& root) {
  TAP_CHECK(root.at("format") == kFormat, "it is not a ", kFormat);
  TAP_CHECK(root.at("version") == kFormatVersion, "it has version ", root.at("version").dump(), ", not ",
            kFormatVersion);
  RunText text;
  text.arch = root.at("arch").get<std::string>();
  text.ties = root.at("ties").get<std::map<std::string, std::string>>();
  text.run.config = root.at("config").get<std::map<std::string, std::string>>();
  text.run.counters = root.at("counters").get<std::map<std::string, std::int64_t>>();
  for (const auto& [name, number] : root.at("numbers").items()) text.run.numbers[name] = number_from_json(number);
  if (root.contains("gradient_scales"))
    for (const auto& [name, number] : root.at("gradient_scales").items()) {
      const double scale = text.gradient_scales[name] = number_from_json(number);
      TAP_CHECK(std::isfinite(scale) && scale > 0, "a loss scale of ", scale, " is impossible");
    }
  if (const json& optimizer = root.at("optimizer"); !optimizer.is_null()) {
    text.has_optimizer = true;
    text.optimizer_name = optimizer.at("name").get<std::string>();
    text.optimizer = counters_from_json(optimizer);
  }
  return text;
}

}  // namespace

std::string write_run_text(const RunText& text) {
  json numbers = json::object(), scales = json::object(), optimizer = nullptr;
  for (const auto& [name, value] : text.run.numbers) numbers[name] = number_to_json(value);
  for (const auto& [name, scale] : text.gradient_scales) scales[name] = number_to_json(scale);
  if (text.has_optimizer)
    optimizer = {{"name", text.optimizer_name},
                 {"steps", text.optimizer.steps},
                 {"skipped", text.optimizer.skipped},
                 {"skipped_in_a_row", text.optimizer.skipped_in_a_row},
                 {"updates", text.optimizer.updates}};
  const json root = {{"format", kFormat},        {"version", kFormatVersion}, {"library", kVersion},
                     {"arch", text.arch},        {"config", text.run.config}, {"counters", text.run.counters},
                     {"numbers", numbers},       {"ties", text.ties},         {"optimizer", optimizer},
                     {"gradient_scales", scales}};
  try {
    return root.dump(2);
  } catch (const json::exception& e) {
    fail("save: names and configuration must be UTF-8 text: ", e.what());
  }
}

RunText read_run_text(const std::string& path, const std::string& json_text) {
  try {
    return from_json(json::parse(json_text));
  } catch (const std::exception& e) {
    fail("load: ", path, ": the run part is damaged: ", e.what());
  }
}

}  // namespace tapestry
