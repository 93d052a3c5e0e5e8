// summary(model): what a model consists of, as text.
#pragma once

#include <string>

#include "autograd/module.h"

namespace tapestry {

// A tree of modules with their kinds, and below each its parameters and buffers with shapes, element counts and bytes;
// then totals, and the FLOPs of a forward pass for one token as far as layers tell them (Module::own_flops). A tied
// Parameter counts where it is met first; frozen ones are marked.
//
//   Sequential           parameters       bytes  FLOPs/token
//     0          Linear          48       192 B           64
//       weight   [2, 16]         32       128 B
//       bias     [16]            16        64 B
std::string summary(Module& model);

}  // namespace tapestry
