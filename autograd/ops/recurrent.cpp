#include "core/kernels/recurrent.h"

#include "autograd/ops.h"
#include "autograd/ops/operands.h"

namespace tapestry {

namespace {

void check_maps(const char* op, int gates, const char* state_name, const Var& from_input, const Var& from_state,
                const Var& state) {
  const Shape& s = state.shape();
  TAP_CHECK(s.rank() >= 1, op, ": ", state_name, " must be [..., H], not ", s);
  const Shape maps = s.with_back(gates * s.back());
  TAP_CHECK(from_input.shape() == maps && from_state.shape() == maps, op, ": ", state_name, " is ", s,
            ", so from_input and from_state must be ", maps, ", not ", from_input.shape(), " and ", from_state.shape());
  TAP_CHECK(from_input.dtype() == state.dtype() && from_state.dtype() == state.dtype(), op, ": ", state_name, " is ",
            state.dtype(), ", but from_input is ", from_input.dtype(), " and from_state ", from_state.dtype(),
            "; all operands must have one dtype");
}

}  // namespace

Var gru_gates(const Var& from_input_, const Var& from_state_, const Var& h_) {
  const auto [from_input, from_state, h] = detail::autocast<"gru_gates">(from_input_, from_state_, h_);
  check_maps("gru_gates", 3, "h", from_input, from_state, h);
  const Shape& s = h.shape();
  Tensor gates = empty(s.with_back(4 * s.back()), h.dtype(), h.device()), h_next = empty_like(h.value());
  TAP_DISPATCH(gru_forward, from_input.value(), from_state.value(), h.value(), gates, h_next);
  return record(
      "gru_gates", h_next,
      [gates, h = save(h)](const Tensor& dh_next, Grad dfrom_input, Grad dfrom_state, Grad dh) {
        TAP_DISPATCH(gru_backward, dh_next, gates, h(), dfrom_input, dfrom_state, dh);
      },
      from_input, from_state, h);
}

std::array<Var, 3> lstm_gates(const Var& from_input_, const Var& from_state_, const Var& c_) {
  const auto [from_input, from_state, c] = detail::autocast<"lstm_gates">(from_input_, from_state_, c_);
  check_maps("lstm_gates", 4, "c", from_input, from_state, c);
  const Shape& s = c.shape();
  Tensor gates = empty(s.with_back(3 * s.back()), c.dtype(), c.device());
  Tensor o = empty_like(c.value()), c_next = empty_like(o), h_next = empty_like(o);
  TAP_DISPATCH(lstm_forward, from_input.value(), from_state.value(), c.value(), gates, o, c_next, h_next);
  return record(
      "lstm_gates", std::array{h_next, c_next, o},
      [gates, o = save(o), c = save(c), c_next = save(c_next)](const Tensor& dh_next, const Tensor& dc_next,
                                                               const Tensor& d_o, Grad dfrom_input, Grad dfrom_state,
                                                               Grad dc) {
        // Both maps have one gradient: written once and shared.
        Tensor dgates;
        if (dfrom_input || dfrom_state) {
          const Shape& shape = c().shape();
          dgates = empty(shape.with_back(4 * shape.back()), c().dtype(), c().device());
        }
        TAP_DISPATCH(lstm_backward, dh_next, dc_next, d_o, gates, o(), c(), c_next(), dgates, dc);
        if (dfrom_input) dfrom_input.pass(dgates);
        if (dfrom_state) dfrom_state.pass(dgates);
      },
      from_input, from_state, c);
}

}  // namespace tapestry
