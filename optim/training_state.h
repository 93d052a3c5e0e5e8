// The state of a training run in one HDF5 file, written atomically: weights, buffers, moments, counters, position and
// configuration. A run resumed from it continues byte for byte. Layout:
//
//   /parameters/<name>           values; a further name of a tied Parameter is a link
//   /buffers/<name>
//   /gradients/<name>            of an open accumulation window: exactly the gradients that are set
//   /optimizer/<moment>/<name>
//   /run                         JSON text: RunState, counters of the optimizer, ties, loss scales of the
//                                gradients, instruction set of the writer
#pragma once

#include <map>
#include <string>

#include "autograd/module.h"
#include "optim/optimizer.h"

namespace tapestry {

// What is saved besides tensors. Plain text and numbers, so that any tool can read them.
struct RunState {
  std::map<std::string, std::string> config = {};     // options of the run and of the model; UTF-8
  std::map<std::string, std::int64_t> counters = {};  // "step", "micro_step", ...: exact integers
  std::map<std::string, double> numbers = {};         // "best_val_loss", ...: kept bit for bit
};

// 128-bit xxHash of every parameter's and buffer's name, shape, dtype and bits, as 32 hexadecimal digits.
std::string weights_hash(Module& model);

// Without `optimizer` (null) only weights, buffers and the run part are saved.
void save_training_state(const std::string& path, Module& model, const Optimizer* optimizer, const RunState& run);
// Loads in place. Every missing, unexpected, mis-shaped or mis-typed entry is listed in one error, and on any error
// nothing is changed. Warns on stderr when the file was written by a build for another instruction set. Without
// `optimizer` only weights and buffers are loaded.
RunState load_training_state(const std::string& path, Module& model, Optimizer* optimizer);
// Only the run part: what is needed to build the model before loading it.
RunState read_run_state(const std::string& path);

}  // namespace tapestry
