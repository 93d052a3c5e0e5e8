// What a tape works in, and what it keeps of its thread. Private to tape.cpp (recording) and backward.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "autograd/monitor.h"
#include "autograd/tape.h"

namespace tapestry::detail {

// Memory for backward lambdas: blocks that are kept and refilled, so a steady state allocates nothing.
class Arena {
 public:
  void* allocate(std::size_t size, std::size_t align) {
    used_ = (used_ + align - 1) / align * align;
    if (blocks_.empty() || used_ + size > kBlock) {
      const std::size_t next = blocks_.empty() ? 0 : block_ + 1;
      if (next == blocks_.size()) blocks_.push_back(std::make_unique<std::byte[]>(kBlock));
      block_ = next;
      used_ = 0;
    }
    void* result = blocks_[block_].get() + used_;
    used_ += size;
    return result;
  }
  void reset() { block_ = used_ = 0; }

 private:
  static constexpr std::size_t kBlock = 64 * 1024;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::size_t block_ = 0, used_ = 0;
};

struct Record {
  const char* op;
  void* closure;  // null once dropped
  void (*run)(void*, std::span<const Tensor>, std::span<const Grad>);
  void (*drop)(void*) noexcept;
  std::uint32_t first_input, input_count;
  NodeId first_output;
  std::uint32_t output_count;
  std::uint32_t note;  // of the Monitor that watched, or 0
};

// Where the gradient of one node is gathered: in the slot itself, in a Parameter's own, or where an outer tape has it.
struct Node {
  GradSlot own;
  std::shared_ptr<ParameterState> parameter;
  GradSlot* elsewhere = nullptr;
  bool watched = false;
  GradSlot& slot() { return parameter ? parameter->grad : elsewhere ? *elsewhere : own; }
};

struct Hook {
  NodeId node;
  std::function<void(const Tensor&)> call;
};

template <class T>
void make_room(std::vector<T>& v, std::size_t count) {
  if (v.capacity() - v.size() < count) v.reserve(std::max(v.size() + count, 2 * v.capacity()));
}

// What a tape of one depth works in; kept by the thread and reused by the next tape.
struct TapeMemory {
  bool in_use = false;
  std::vector<Record> records;
  std::vector<NodeId> inputs;  // of all records, one after the other
  std::vector<Node> nodes;     // node 0 stands for "not tracked"
  std::vector<Hook> hooks;
  Arena arena;
  // Working space of one record in backward.
  std::vector<Tensor> dys;
  std::vector<Grad> grads;
  std::vector<GradSlot> scratch;
  std::vector<std::uint8_t> writes;
  std::vector<Monitor::Input> watched;

  void drop_closures() noexcept {
    for (auto r = records.rbegin(); r != records.rend(); ++r)
      if (void* closure = std::exchange(r->closure, nullptr)) r->drop(closure);
  }
  void clear() noexcept {
    drop_closures();
    records.clear();
    inputs.clear();
    nodes.clear();
    hooks.clear();
    arena.reset();
    in_use = false;
  }
};

struct ThreadState {
  Tape* innermost = nullptr;
  GradMode mode = GradMode::record;
  bool noted = false;  // a Parameter was used while mode was note_parameters
  double loss_scale = 1;
};
inline constinit thread_local ThreadState thread_state;

// What a Monitor sees of a record's inputs: value(i), and where it comes from.
template <class F>
std::span<const Monitor::Input> watch_inputs(TapeMemory& m, const Record& r, F value) {
  m.watched.clear();
  for (std::uint32_t i = 0; i < r.input_count; ++i) {
    const NodeId id = m.inputs[r.first_input + i];
    const Node& node = m.nodes[id];
    m.watched.push_back({value(i), node.parameter.get(), id != 0 && !node.parameter && !node.watched});
  }
  return m.watched;
}

}  // namespace tapestry::detail
