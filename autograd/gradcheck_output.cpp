// Results of a gradient-check suite as JSON and as the XML that JUnit made common.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "autograd/gradcheck_main.h"

namespace tapestry {
namespace {

// Control characters are not allowed in XML 1.0, not even escaped.
std::string xml(std::string_view text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return result;
}

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

std::string state_of(const GradcheckSuiteRow& r) {
  return !r.row->skip.empty() ? "skipped" : r.result.passed ? "passed" : "failed";
}

const char* kind_of(const GradcheckSuiteRow& r) { return r.row->module ? "layer" : "op"; }

// The fault that gradcheck names or, if another check failed, which one.
std::string fault_of(const GradcheckSuiteRow& r) {
  if (!r.result.report.passed()) return std::string(name_of(r.result.report.fault));
  return r.result.failed.empty() ? std::string("none") : r.result.failed.front();
}

// One line for lists of failures: gradcheck's, or the first of the details.
std::string message_of(const GradcheckSuiteRow& r) {
  if (!r.result.report.passed()) return r.result.report.message;
  const std::string& details = r.result.details;
  const std::size_t begin = details.find_first_not_of(' ');
  return begin == std::string::npos ? std::string() : details.substr(begin, details.find('\n', begin) - begin);
}

// Numbers that are not finite become null, as JSON has none.
nlohmann::json worst_of(const GradcheckReport::Entry& e) {
  return {{"input", e.input},
          {"input_shape", to_text(e.input_shape)},
          {"input_index", e.input_index},
          {"output", e.output},
          {"output_shape", to_text(e.output_shape)},
          {"output_index", e.output_index},
          {"analytic", e.analytic},
          {"numeric", e.numeric},
          {"error_bar", e.error_bar},
          {"allowed", e.allowed}};
}

nlohmann::json json_of(const GradcheckSuiteRow& r) {
  const GradcheckReport& report = r.result.report;
  nlohmann::json row{{"name", r.row->name},
                     {"covers", r.row->covers()},
                     {"kind", kind_of(r)},
                     {"state", state_of(r)},
                     {"seed", r.row->gradcheck.seed}};
  if (!r.row->skip.empty()) {
    row["reason"] = r.row->skip;
    return row;
  }
  row["seconds"] = r.result.seconds;
  row["gradient_error"] = r.result.gradient_error;
  row["f32_error"] = r.result.f32_error;
  if (r.row->low && r.row->skip_low.empty()) {
    row["bf16_error"] = r.result.bf16_error;
    row["f16_error"] = r.result.f16_error;
  }
  if (!r.row->skip_low.empty()) row["low_reason"] = r.row->skip_low;
  row["compared"] = report.compared;
  row["kinks"] = report.kinks;
  row["frozen"] = report.frozen;
  if (r.result.passed) return row;
  row["checks"] = r.result.failed;
  row["fault"] = fault_of(r);
  row["message"] = message_of(r);
  row["diagnosis"] = name_of(report.diagnosis);
  row["diagnosis_text"] = report.diagnosis_text;
  if (!report.worst.input.empty()) row["worst"] = worst_of(report.worst);
  row["details"] = r.result.details + r.reproducer;
  return row;
}

}  // namespace

std::string gradcheck_json(const GradcheckSuiteResult& result) {
  std::map<std::string, int> counts{{"passed", 0}, {"failed", 0}, {"skipped", 0}};
  for (const GradcheckSuiteRow& r : result.rows) ++counts[state_of(r)];
  nlohmann::json all(counts);
  all["uncovered"] = result.uncovered;
  all["rows"] = nlohmann::json::array();
  for (const GradcheckSuiteRow& r : result.rows) all["rows"].push_back(json_of(r));
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string gradcheck_junit(const GradcheckSuiteResult& result) {
  std::string cases;
  double total = 0;
  int failed = 0, skipped = 0;
  auto failure = [&](const std::string& type, const std::string& message, const std::string& text) {
    ++failed;
    cases += text_of("><failure type=\"", xml(type), "\" message=\"", xml(message), "\">\n", xml(text),
                     "</failure></testcase>\n");
  };
  for (const GradcheckSuiteRow& r : result.rows) {
    total += r.result.seconds;
    cases += text_of("  <testcase classname=\"", kind_of(r), ".", xml(r.row->covers()), "\" name=\"", xml(r.row->name),
                     "\" time=\"", seconds(r.result.seconds), "\"");
    if (state_of(r) == "passed") {
      cases += "/>\n";
    } else if (state_of(r) == "skipped") {
      ++skipped;
      cases += text_of("><skipped message=\"", xml(r.row->skip), "\"/></testcase>\n");
    } else {
      failure(fault_of(r), message_of(r), r.result.details + r.reproducer);
    }
  }
  for (const std::string& name : result.uncovered) {
    cases += text_of("  <testcase classname=\"coverage\" name=\"", xml(name), "\" time=\"0\"");
    failure("not covered", text_of("no row is named after ", name), "add one\n");
  }
  return text_of("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"gradcheck\" tests=\"",
                 result.rows.size() + result.uncovered.size(), "\" failures=\"", failed, "\" skipped=\"", skipped,
                 "\" errors=\"0\" time=\"", seconds(total), "\">\n", cases, "</testsuite>\n");
}

}  // namespace tapestry
