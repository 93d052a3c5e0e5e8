#include "autograd/tape.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "autograd/autocast.h"
#include "autograd/checkpoint.h"
#include "autograd/monitor.h"
#include "autograd/profile.h"
#include "core/kernels/strided_copy.h"

namespace tapestry {

namespace {

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
  std::shared_ptr<detail::ParameterState> parameter;
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

}  // namespace

namespace detail {

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

}  // namespace detail

namespace {

using detail::TapeMemory;

using detail::GradMode;

struct ThreadState {
  Tape* innermost = nullptr;
  GradMode mode = GradMode::record;
  bool noted = false;  // a Parameter was used while mode was note_parameters
  double loss_scale = 1;
};
thread_local ThreadState thread_state;

TapeMemory& acquire_memory() {
  static thread_local std::vector<std::unique_ptr<TapeMemory>> memories;
  for (auto& memory : memories) {
    if (!memory->in_use) {
      memory->in_use = true;
      return *memory;
    }
  }
  memories.push_back(std::make_unique<TapeMemory>());
  memories.back()->in_use = true;
  return *memories.back();
}

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

std::atomic<std::uint64_t> epochs{0};

// ParameterState::leaf packs the epoch of the tape with the node.
constexpr int kNodeBits = 24;

}  // namespace

Tape::Tape()
    : memory_(acquire_memory()),
      outer_(thread_state.innermost),
      outer_mode_(thread_state.mode),
      epoch_(epochs.fetch_add(1, std::memory_order_relaxed) + 1) {
  memory_.nodes.emplace_back();
  thread_state.innermost = this;
  thread_state.mode = GradMode::record;
}

Tape::~Tape() {
  memory_.clear();
  if (thread_state.innermost == this) {
    thread_state.innermost = outer_;
    thread_state.mode = outer_mode_;
  } else {
    // Not destroyed in reverse order: take it out of the chain where it is.
    for (Tape* t = thread_state.innermost; t; t = t->outer_)
      if (t->outer_ == this) t->outer_ = outer_;
  }
}

Tape* Tape::current() { return thread_state.mode == GradMode::record ? thread_state.innermost : nullptr; }

std::int64_t Tape::size() const { return static_cast<std::int64_t>(memory_.records.size()); }

std::vector<const detail::ParameterState*> Tape::touched_parameters() const {
  std::vector<const detail::ParameterState*> result;
  for (const Node& node : memory_.nodes)
    if (node.parameter) result.push_back(node.parameter.get());
  return result;
}

Var Tape::watch(Tensor value) {
  TAP_CHECK(value && is_floating(value.dtype()), "watch: needs a floating tensor");
  TAP_CHECK(!consumed_, "watch: backward has already run on this tape; make a new Tape");
  make_room(memory_.nodes, 1);
  Node& node = memory_.nodes.emplace_back();
  node.own.shape = value.shape();
  node.own.dtype = value.dtype();
  node.own.device = value.device();
  node.watched = true;
  return Var(std::move(value), static_cast<NodeId>(memory_.nodes.size() - 1), epoch_);
}

Var Tape::watch(Tensor value, Grad grad) {
  if (!grad) return Var(std::move(value));
  Var leaf = watch(std::move(value));
  Node& node = memory_.nodes[leaf.node_];
  node.elsewhere = grad.slot();
  node.watched = false;
  return leaf;
}

Tensor Tape::grad(const Var& watched) const {
  TAP_CHECK(watched.tracked() && watched.epoch_ == epoch_ && memory_.nodes[watched.node_].watched,
            "grad: needs a Var that watch() of this tape returned; a Parameter has its own grad()");
  const GradSlot& slot = memory_.nodes[watched.node_].own;
  return slot.set ? slot.tensor : zeros(slot.shape, slot.dtype, slot.device);
}

void Tape::hook(const Var& v, std::function<void(const Tensor&)> f) {
  check_input("hook", 0, v);
  TAP_CHECK(v.tracked(), "hook: the Var is a constant, no gradient will arrive");
  memory_.hooks.push_back({v.node_, std::move(f)});
}

void Tape::check_input(const char* op, std::size_t index, const Var& v) const {
  if (!v.tracked() || v.epoch_ == epoch_) return;
  for (const Tape* t = outer_; t; t = t->outer_)
    TAP_CHECK(v.epoch_ != t->epoch_, op, ": input ", index,
              " belongs to an outer tape; take detach() of it, or watch() its value on this tape");
  fail(op, ": input ", index,
       " was recorded on a tape that has ended or belongs to another thread; take detach() of it, or rebuild it here");
}

NodeId Tape::parameter_leaf(const std::shared_ptr<detail::ParameterState>& state) {
  const std::uint64_t leaf = state->leaf.load(std::memory_order_relaxed);
  if (leaf >> kNodeBits == epoch_) return static_cast<NodeId>(leaf & ((1u << kNodeBits) - 1));
  make_room(memory_.nodes, 1);
  memory_.nodes.emplace_back().parameter = state;
  const std::size_t node = memory_.nodes.size() - 1;
  if (node >> kNodeBits == 0) state->leaf.store(epoch_ << kNodeBits | node, std::memory_order_relaxed);
  return static_cast<NodeId>(node);
}

void Tape::push(const char* op, std::span<const Tensor> outputs, const Var* const* inputs, std::size_t input_count,
                detail::Closure closure, Var* results) {
  TapeMemory& m = memory_;
  // Everything that can throw comes first.
  make_room(m.records, 1);
  make_room(m.inputs, input_count);
  make_room(m.nodes, outputs.size());
  void* place = m.arena.allocate(closure.size, closure.align);

  const auto first_input = static_cast<std::uint32_t>(m.inputs.size());
  const auto first_output = static_cast<NodeId>(m.nodes.size());
  for (std::size_t i = 0; i < input_count; ++i) m.inputs.push_back(inputs[i]->node_);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    GradSlot& slot = m.nodes.emplace_back().own;
    slot.shape = outputs[i].shape();
    slot.dtype = outputs[i].dtype();
    slot.device = outputs[i].device();
    results[i] = Var(outputs[i], first_output + static_cast<NodeId>(i), epoch_);
  }
  closure.move_to(closure.object, place);
  m.records.push_back({op, place, closure.run, closure.drop, first_input, static_cast<std::uint32_t>(input_count),
                       first_output, static_cast<std::uint32_t>(outputs.size()), 0});
  if (Monitor* monitor = Monitor::current()) [[unlikely]] {
    const auto watched = watch_inputs(m, m.records.back(), [&](std::size_t i) { return &inputs[i]->value(); });
    m.records.back().note = monitor->forward(op, outputs, watched, !outer_ && m.records.size() == 1);
  }
  if (Profile* profile = Profile::current()) [[unlikely]]
    profile->count(op, false);
}

void Tape::check_start(const Var& y) const {
  TAP_CHECK(!consumed_, "backward: the records of this tape were released by its first backward; rebuild the forward");
  check_input("backward", 0, y);
  TAP_CHECK(y.tracked(),
            "backward: the loss is a constant; it depends on no Parameter and no watched Var of this tape");
}

void Tape::backward(const Var& loss, double seed) {
  TAP_CHECK(loss.numel() == 1, "backward: the loss must have one element, but its shape is ", loss.shape(),
            "; reduce it with sum() or mean()");
  check_start(loss);
  backward(loss, full(loss.shape(), seed, loss.dtype(), loss.device()));
}

void Tape::backward(const Var& y, const Tensor& dy) {
  check_start(y);
  mark_scales();
  consumed_ = true;
  const ThreadState before = thread_state;
  const Autocast off(DType::f32);
  thread_state.mode = GradMode::off;  // a backward function that records needs a tape of its own
  try {
    Grad(&memory_.nodes[y.node_].slot()).pass(dy);
    run_records();
  } catch (...) {
    thread_state = before;
    abandon();
    throw;
  }
  thread_state = before;
}

void Tape::mark_scales() {
  const double scale = thread_state.loss_scale;
  for (const Node& node : memory_.nodes) {
    if (!node.parameter) continue;
    TAP_CHECK(!node.parameter->grad.set || node.parameter->loss_scale == scale,
              "backward: the gradients so far carry the loss scale ", node.parameter->loss_scale,
              " and this backward has ", scale, "; between two steps make all with scaler.backward(loss), or all with ",
              "tape.backward(loss), and none after scaler.unscale(optimizer)");
  }
  for (const Node& node : memory_.nodes)
    if (node.parameter) node.parameter->loss_scale = scale;
}

// On failure the gradients of the whole accumulation window count as never computed.
void Tape::abandon() noexcept {
  memory_.drop_closures();
  memory_.dys.clear();
  for (GradSlot& slot : memory_.scratch) slot = GradSlot{};
  for (Node& node : memory_.nodes) {
    node.own.set = false;
    node.own.tensor = Tensor();
    if (!node.parameter) continue;
    node.parameter->unset_grad();
    if (node.parameter->pack) node.parameter->pack->unset_gradients();
  }
}

namespace {

void run_hooks(TapeMemory& m, NodeId node, const Tensor& gradient) {
  for (const Hook& hook : m.hooks)
    if (hook.node == node) hook.call(gradient);
}

// A second gradient for the same node in one record goes to a slot of its own and is added afterwards, so the outputs
// of a backward function never alias.
void prepare_grads(TapeMemory& m, const Record& r) {
  m.grads.assign(r.input_count, Grad());
  m.writes.assign(r.input_count, 0);
  if (m.scratch.size() < r.input_count) m.scratch.resize(r.input_count);
  const NodeId* ids = m.inputs.data() + r.first_input;
  for (std::uint32_t i = 0; i < r.input_count; ++i) {
    if (ids[i] == 0) continue;
    GradSlot* slot = &m.nodes[ids[i]].slot();
    if (std::find(ids, ids + i, ids[i]) != ids + i) {
      m.scratch[i] = GradSlot{{}, slot->shape, slot->dtype, slot->device, false, false};
      slot = &m.scratch[i];
    }
    m.grads[i] = Grad(slot, &m.writes[i]);
  }
}

void finish_grads(TapeMemory& m, const Record& r) {
  const NodeId* ids = m.inputs.data() + r.first_input;
  for (std::uint32_t i = 0; i < r.input_count; ++i) {
    if (ids[i] == 0) continue;
    TAP_CHECK(m.writes[i] == 1, "the backward function must claim() or pass() the gradient of input ", i,
              " exactly once, but did so ", m.writes[i], " times");
    GradSlot& scratch = m.scratch[i];
    if (!scratch.set) continue;
    Grad(&m.nodes[ids[i]].slot()).pass(scratch.tensor);
    scratch = GradSlot{};
  }
}

}  // namespace

void Tape::run_records() {
  TapeMemory& m = memory_;
  Profile* const profile = Profile::current();
  Monitor* const monitor = Monitor::current();
  for (std::size_t i = m.records.size(); i-- > 0;) {
    Record& r = m.records[i];
    m.dys.resize(r.output_count);
    bool reached = false;
    try {
      for (std::uint32_t o = 0; o < r.output_count; ++o) {
        GradSlot& slot = m.nodes[r.first_output + o].own;
        if (!slot.set) continue;
        reached = true;
        slot.set = false;
        m.dys[o] = std::move(slot.tensor);
        if (!m.hooks.empty()) run_hooks(m, r.first_output + o, m.dys[o]);
      }
      if (reached) {
        const std::size_t mark = monitor ? monitor->before_backward(r.note, r.op, m.dys) : 0;
        prepare_grads(m, r);
        r.run(r.closure, m.dys, m.grads);
        finish_grads(m, r);
        if (monitor) [[unlikely]]
          monitor->after_backward(r.note, mark, r.op, watch_inputs(m, r, [&](std::size_t input) -> const Tensor* {
                                    const NodeId id = m.inputs[r.first_input + input];
                                    return id == 0 ? nullptr : &m.nodes[id].slot().tensor;
                                  }));
      }
      if (profile) [[unlikely]]
        profile->count(r.op, true);
    } catch (const Error& e) {
      fail("backward of ", r.op, " (record ", i + 1, " of ", m.records.size(), "): ", e.what());
    }
    r.drop(std::exchange(r.closure, nullptr));  // frees what the record saved before the next one runs
    m.dys.clear();
  }
  if (monitor && !outer_) {
    for (const Node& node : m.nodes)
      if (node.parameter && node.parameter->grad.set) monitor->parameter_gradient(*node.parameter);
  }
  if (m.hooks.empty()) return;
  for (NodeId node = 1; node < m.nodes.size(); ++node) {
    Node& leaf = m.nodes[node];
    if ((leaf.watched || leaf.parameter) && leaf.slot().set) run_hooks(m, node, leaf.slot().tensor);
  }
}

NoGrad::NoGrad() : outer_(std::exchange(thread_state.mode, GradMode::off)) {}
NoGrad::~NoGrad() { thread_state.mode = outer_; }

detail::NoteParameters::NoteParameters()
    : outer_mode_(std::exchange(thread_state.mode, GradMode::note_parameters)),
      outer_any_(std::exchange(thread_state.noted, false)) {}
detail::NoteParameters::~NoteParameters() {
  thread_state.mode = outer_mode_;
  thread_state.noted = outer_any_;
}
bool detail::NoteParameters::any() const { return thread_state.noted; }

detail::LossScaleScope::LossScaleScope(double scale) : outer_(std::exchange(thread_state.loss_scale, scale)) {}
detail::LossScaleScope::~LossScaleScope() { thread_state.loss_scale = outer_; }

static thread_local std::uint64_t parameter_uses = 0;
std::uint64_t detail::parameter_uses() { return tapestry::parameter_uses; }

Var::Var(const Parameter& parameter) : value_(parameter.value()), parameter_(parameter.state()) {
  parameter_uses += 1 + std::uint64_t{parameter.version()};
  if (!parameter.trainable()) return;
  if (Tape* tape = Tape::current()) {
    node_ = tape->parameter_leaf(parameter.state());
    epoch_ = tape->epoch_;
  } else if (thread_state.mode == GradMode::note_parameters) {
    thread_state.innermost->parameter_leaf(parameter.state());
    thread_state.noted = true;
  }
}

void Saved::report_change() const {
  fail("a value of shape ", value_.shape(), " that was saved for backward has since been changed by ",
       watched().last_writer(), "; change it after backward, or change a clone()");
}

void detail::record(const char* op, std::span<const Tensor> outputs, const Var* const* inputs, std::size_t input_count,
                    Closure closure, Var* results, bool tracked) {
  Tape* tape = thread_state.innermost;
  if (thread_state.mode == GradMode::record) {
    for (std::size_t i = 0; i < input_count; ++i) {
      if (!inputs[i]->tracked()) continue;
      tracked = true;
      TAP_CHECK(tape, op, ": input ", i,
                " was recorded on a tape that has ended or belongs to another thread; take detach() of it");
      tape->check_input(op, i, *inputs[i]);
    }
  }
  if (tracked) return tape->push(op, outputs, inputs, input_count, closure, results);
  for (std::size_t i = 0; i < outputs.size(); ++i) results[i] = Var(outputs[i]);
}

}  // namespace tapestry
