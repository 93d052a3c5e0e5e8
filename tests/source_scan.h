// Reads the project's own sources: which functions and layers there are, and what backward lambdas capture. It knows
// as much of C++ as the project's style uses.
#pragma once

// GCC 12 with AddressSanitizer sees uninitialised members inside std::regex (its bug 105562).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"

namespace tapestry::scan {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  TAP_CHECK(file, "scan: cannot read ", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// All files below `folder` with this extension, in order of their names.
inline std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder,
                                                      const std::string& extension) {
  std::set<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == extension) found.insert(entry.path());
  return {found.begin(), found.end()};
}

// Without comments, string contents and preprocessor lines.
inline std::string plain_code(const std::string& source) {
  static const std::regex noise(R"re(//[^\n]*|/\*[^]*?\*/|"(?:\\.|[^"\\\n])*")re");
  static const std::regex directive(R"((^|\n)[ \t]*#[^\n]*)");
  std::string code;
  auto from = source.begin();
  for (std::sregex_iterator it(source.begin(), source.end(), noise), end; it != end; ++it) {
    code.append(from, source.begin() + it->position());
    code += source[static_cast<std::size_t>(it->position())] == '"' ? "\"\"" : " ";
    from = source.begin() + it->position() + it->length();
  }
  code.append(from, source.end());
  return std::regex_replace(code, directive, "\n");
}

// Names of the functions declared or defined at namespace scope, operators as "operator+".
inline std::set<std::string> declared_functions(const std::string& source) {
  static const std::regex name(R"((operator\s*[^\s\w(]+|\w+)\s*\()");
  static const std::regex is_namespace(R"(^\s*(inline\s+)?namespace\b[^(]*$)");
  std::set<std::string> names;
  std::string statement;
  int parens = 0, braces = 0;
  auto finish = [&] {
    std::smatch m;
    if (std::regex_search(statement, m, name)) {
      std::string found = m[1];
      std::erase_if(found, [](char c) { return std::isspace(static_cast<unsigned char>(c)); });
      names.insert(found);
    }
    statement.clear();
  };
  for (char c : plain_code(source)) {
    if (c == '(') ++parens;
    if (c == ')') --parens;
    if (c == '{' && parens == 0 && braces == 0 && std::regex_search(statement, is_namespace)) {
      statement.clear();
    } else if (c == '{' && parens == 0) {
      if (braces++ == 0) finish();
    } else if (c == '}' && parens == 0) {
      if (braces > 0) --braces;
    } else if (c == ';' && parens == 0 && braces == 0) {
      finish();
    } else if (braces == 0) {
      statement += c;
    }
  }
  return names;
}

// Names of the classes that derive from Module, directly or not, in any of the sources.
inline std::set<std::string> module_classes(const std::vector<std::string>& sources) {
  static const std::regex derived(R"((?:class|struct)\s+(\w+)(?:\s+final)?\s*:\s*([^{;]*)\{)");
  static const std::regex word(R"(\w+)");
  std::set<std::string> classes{"Module"};
  for (std::size_t before = 0; before != classes.size();) {
    before = classes.size();
    for (const std::string& source : sources) {
      const std::string code = plain_code(source);
      for (std::sregex_iterator it(code.begin(), code.end(), derived), end; it != end; ++it) {
        const std::string bases = (*it)[2];
        for (std::sregex_iterator base(bases.begin(), bases.end(), word); base != end; ++base)
          if (classes.contains(base->str())) classes.insert((*it)[1]);
      }
    }
  }
  classes.erase("Module");
  return classes;
}

// Complaints about backward lambdas that keep a value without save(), so that a later change would go unnoticed: an
// input, the op's own output, or everything by a default capture.
inline std::vector<std::string> raw_captures(const std::string& source) {
  static const std::regex lambda(R"(\[([^\[\]]*)\]\s*\(\s*(?:const\s+Tensor\s*&|Tensor)[^)]*\bGrad\b)");
  static const std::regex output(R"(record\s*\(\s*[^,]*,\s*(\w+)\s*,\s*$)");
  const std::string code = plain_code(source);
  std::vector<std::string> complaints;
  for (std::sregex_iterator it(code.begin(), code.end(), lambda), end; it != end; ++it) {
    const std::string before = code.substr(0, static_cast<std::size_t>(it->position()));
    const std::size_t function = before.rfind("\n}");
    const std::string body = function == std::string::npos ? before : before.substr(function);
    auto holds_value = [&](const std::string& name) {
      const std::regex is_input("\\b(Var|Tensor)\\s*&\\s*" + name + "\\b");
      const std::regex is_operand("auto\\s*\\[[^\\]]*\\b" + name + "\\b[^\\]]*\\]\\s*=\\s*detail::autocast\\b");
      const std::regex is_value("\\b" + name + "\\s*=[^;=]*\\bvalue\\(\\)\\s*[;,)]");
      std::smatch m;
      const bool is_output = std::regex_search(body, m, output) && m[1] == name;
      return is_output || std::regex_search(body, is_input) || std::regex_search(body, is_operand) ||
             std::regex_search(body, is_value);
    };
    std::string list = (*it)[1];
    int parens = 0;
    for (char& c : list) {  // only commas between captures separate
      parens += c == '(' ? 1 : c == ')' ? -1 : 0;
      if (c == ',' && parens == 0) c = '\n';
    }
    static const std::regex capture(R"(\s*([^\n=]*[^\n=\s])\s*(?:=\s*([^\n]*[^\n\s]))?)");
    for (std::sregex_iterator c(list.begin(), list.end(), capture); c != end; ++c) {
      const std::string name = (*c)[1], value = (*c)[2];
      const bool saved = value.find("save") != std::string::npos;
      const bool raw = value.empty() ? name == "&" || holds_value(name)
                                     : !saved && (value.find(".value()") != std::string::npos || holds_value(value));
      if (raw) complaints.push_back(c->str());
    }
    if (std::regex_search(list, std::regex(R"(^\s*[=&]\s*($|\n))"))) complaints.push_back("[" + list + "]");
  }
  return complaints;
}

}  // namespace tapestry::scan
