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

}  // namespace

std::string gradcheck_json(const std::vector<GradcheckSuiteRow>& rows) {
  nlohmann::json list = nlohmann::json::array();
  std::map<std::string, int> counts{{"passed", 0}, {"failed", 0}, {"skipped", 0}};
  for (const GradcheckSuiteRow& r : rows) {
    ++counts[state_of(r)];
    const GradcheckReport& report = r.result.report;
    nlohmann::json row{{"name", r.row->name},
                       {"covers", r.row->covers()},
                       {"kind", kind_of(r)},
                       {"state", state_of(r)},
                       {"seed", r.row->gradcheck.seed},
                       {"seconds", r.result.seconds},
                       {"gradient_error", r.result.gradient_error},
                       {"f32_error", r.result.f32_error},
                       {"compared", report.compared},
                       {"kinks", report.kinks}};
    if (!r.row->skip.empty()) row["reason"] = r.row->skip;
    if (state_of(r) == "failed") {
      row["fault"] = name_of(report.fault);
      row["diagnosis"] = name_of(report.diagnosis);
      row["diagnosis_text"] = report.diagnosis_text;
      row["details"] = r.result.details + r.reproducer;
    }
    list.push_back(std::move(row));
  }
  nlohmann::json all(counts);
  all["rows"] = std::move(list);
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string gradcheck_junit(const std::vector<GradcheckSuiteRow>& rows) {
  std::string cases;
  double total = 0;
  int failed = 0, skipped = 0;
  for (const GradcheckSuiteRow& r : rows) {
    total += r.result.seconds;
    cases += text_of("  <testcase classname=\"", kind_of(r), ".", xml(r.row->covers()), "\" name=\"", xml(r.row->name),
                     "\" time=\"", seconds(r.result.seconds), "\"");
    if (state_of(r) == "passed") {
      cases += "/>\n";
    } else if (state_of(r) == "skipped") {
      ++skipped;
      cases += text_of("><skipped message=\"", xml(r.row->skip), "\"/></testcase>\n");
    } else {
      ++failed;
      const GradcheckReport& report = r.result.report;
      const std::string message = report.passed() ? "a check of the row failed" : report.message;
      cases += text_of("><failure type=\"", name_of(report.fault), "\" message=\"", xml(message), "\">\n",
                       xml(r.result.details + r.reproducer), "</failure></testcase>\n");
    }
  }
  return text_of("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"gradcheck\" tests=\"", rows.size(),
                 "\" failures=\"", failed, "\" skipped=\"", skipped, "\" errors=\"0\" time=\"", seconds(total), "\">\n",
                 cases, "</testsuite>\n");
}

}  // namespace tapestry
