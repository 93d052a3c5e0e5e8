// The backward pass of a tape: one loop over its records in reverse.
#include "autograd/autocast.h"
#include "autograd/profile.h"
#include "autograd/tape_memory.h"
#include "core/kernels/strided_copy.h"

namespace tapestry {

using detail::GradMode, detail::Hook, detail::Node, detail::Record, detail::TapeMemory, detail::thread_state;
using detail::ThreadState;

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

}  // namespace tapestry
