// The rules of the folder table and of headers, read from the sources.
#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

const fs::path kRoot = TAPESTRY_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_source(const fs::path& p) {
  return p.extension() == ".h" || p.extension() == ".cpp" || p.extension() == ".cu" || p.extension() == ".cuh";
}

std::vector<fs::path> sources(const std::string& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder))
    if (entry.is_regular_file() && is_source(entry.path())) found.push_back(entry.path());
  return found;
}

// What each folder of the library may include besides itself.
const std::map<std::string, std::set<std::string>> kMayInclude = {{"core", {}},
                                                                  {"gpu", {"core"}},
                                                                  {"autograd", {"core"}},
                                                                  {"layers", {"autograd", "core"}},
                                                                  {"optim", {"autograd", "core"}}};

// Folders of the project that `text` includes and `folder` must not.
std::vector<std::string> forbidden_includes(const std::string& folder, const std::string& text) {
  static const std::regex include("#include\\s+\"(core|gpu|autograd|layers|optim|examples|tests)/[^\"]*\"");
  std::vector<std::string> found;
  for (std::sregex_iterator i(text.begin(), text.end(), include), end; i != end; ++i) {
    const std::string target = (*i)[1];
    if (target != folder && !kMayInclude.at(folder).contains(target)) found.push_back((*i)[0]);
  }
  return found;
}

}  // namespace

TEST_CASE("folders include only what the table allows") {
  CHECK(forbidden_includes("core", "#include \"autograd/tape.h\"\n").size() == 1);  // the check itself can fail
  CHECK(forbidden_includes("optim", "#include \"layers/linear.h\"\n").size() == 1);
  CHECK(forbidden_includes("layers", "#include \"core/tensor.h\"\n#include <vector>\n").empty());
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const fs::path& path : sources(folder))
      for (const std::string& line : forbidden_includes(folder, read(path))) FAIL_CHECK(path.string() << ": " << line);
  }
}

TEST_CASE("OpenMP only in parallel_for; heavy libraries and CUDA not in shared headers") {
  const std::regex heavy("#include\\s+<(doctest|CLI|nlohmann|Eigen|hdf5|xxhash|omp|cuda)");
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const fs::path& path : sources(folder)) {
      const std::string text = read(path);
      if (path != kRoot / "core" / "parallel.cpp" && text.find("#pragma omp") != std::string::npos)
        FAIL_CHECK(path.string() << " has an OpenMP pragma; use parallel_for");
      if (path.extension() == ".h" && std::regex_search(text, heavy))
        FAIL_CHECK(path.string() << " includes a heavy library; include it in the .cpp");
    }
  }
}

TEST_CASE("every header is guarded and opens with what it is for") {
  for (const std::string folder : {"core", "autograd", "layers", "optim", "examples", "tests"}) {
    for (const fs::path& path : sources(folder)) {
      if (path.extension() != ".h") continue;
      const std::string text = read(path);
      CHECK_MESSAGE(text.rfind("// ", 0) == 0, path.string(), " does not open with a comment");
      CHECK_MESSAGE(text.find("#pragma once") != std::string::npos, path.string(), " has no #pragma once");
    }
  }
}

TEST_CASE("every public header compiles alone") {
  // All at once would hide what a header lacks, and one object file each would be slow to build; syntax is enough.
  const fs::path one_include = fs::temp_directory_path() / ("tapestry_header_" + std::to_string(getpid()) + ".cpp");
  for (const std::string folder : {"core", "autograd", "layers", "optim"}) {
    for (const fs::path& path : sources(folder)) {
      if (path.extension() != ".h") continue;
      std::ofstream(one_include) << "#include \"" << path.string() << "\"\n";
      const std::string command = std::string(TAPESTRY_COMPILER) + " -std=c++20 -fsyntax-only -I" + kRoot.string() +
                                  " -I" + TAPESTRY_BINARY_DIR + "/include " + one_include.string() + " 2>&1";
      CHECK_MESSAGE(std::system(command.c_str()) == 0, path.string(), " does not compile alone");
    }
  }
  fs::remove(one_include);
}
