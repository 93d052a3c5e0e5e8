// The JSON text of a training state: everything that is not a tensor. Private to training_state.cpp.
#pragma once

#include "optim/training_state.h"

namespace tapestry {

struct RunText {
  RunState run = {};
  std::string arch = kArch;                            // instruction set of the build that wrote it
  std::map<std::string, std::string> ties = {};        // further name of a tied Parameter -> its first name
  std::map<std::string, double> gradient_scales = {};  // loss scale of a saved gradient, where it is not 1
  bool has_optimizer = false;
  std::string optimizer_name = {};
  Optimizer::Counters optimizer = {};
};

std::string write_run_text(const RunText& text);
// `path` is for the error that a malformed text throws.
RunText read_run_text(const std::string& path, const std::string& json);

}  // namespace tapestry
