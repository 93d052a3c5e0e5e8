// Prints a header with the names of the functions of autograd/ops.h and of the Modules of layers/, as the headers have
// them now: list_menu ops.h layer.h...
#include <cstdio>

#include "tests/source_scan.h"

namespace {

void print(const char* what, const std::set<std::string>& names) {
  std::printf("inline constexpr const char* %s[] = {", what);
  for (const std::string& name : names) std::printf("\n    \"%s\",", name.c_str());
  std::printf("\n};\n");
}

}  // namespace

int main(int argc, char** argv) try {
  using namespace tapestry;
  std::vector<std::string> layers;
  for (int k = 2; k < argc; ++k) layers.push_back(scan::read_file(argv[k]));
  std::printf("// Made by list_menu.\n#pragma once\n\n");
  print("kOps", scan::declared_functions(scan::read_file(argc > 1 ? argv[1] : "autograd/ops.h")));
  print("kLayers", scan::module_classes(layers));
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
