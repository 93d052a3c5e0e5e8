#include "autograd/tape.h"

#include "autograd/autocast.h"
#include "autograd/checkpoint.h"
#include "autograd/profile.h"
#include "autograd/tape_memory.h"

namespace tapestry {

using detail::GradMode, detail::Node, detail::TapeMemory, detail::make_room, detail::thread_state;

namespace {

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
