// Makers of optimizers, for tests that do the same with several of them.
#pragma once

#include <functional>

#include "optim/optimizers.h"
#include "tests/optimizer_testing.h"

namespace tapestry::testing {

using Groups = std::vector<ParameterGroup>;
using Make = std::function<std::unique_ptr<Optimizer>(Groups)>;

template <class O, class Options>
Make make(const Options& options) {
  return [options](Groups groups) { return std::make_unique<O>(std::move(groups), options); };
}

// Matrices to Muon's update, the others to AdamW's.
inline Make make_muon(const MuonOptions& options) {
  return [options](Groups groups) {
    ParameterGroup matrices, others;
    for (NamedParameter& p : groups[0].parameters)
      (p.parameter->shape().rank() == 2 ? matrices : others).parameters.push_back(std::move(p));
    return std::make_unique<Muon>(Groups{matrices}, others.parameters.empty() ? Groups{} : Groups{others}, options);
  };
}

}  // namespace tapestry::testing
