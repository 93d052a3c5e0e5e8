// The gates of recurrent cells, from the input's and the state's map of all gates side by side to the next state.
// GRU (Cho et al. 2014), a and b the maps [..., 3H], h [..., H]: r, z = sigmoid(a + b), n = tanh(a + r b),
// h' = n + z (h - n). Saved: r, z, n and the part of b for n, side by side [..., 4H].
// Backward: s = dh' (1 - z) (1 - n^2) goes to a's n, s r to b's n; s b r (1 - r) and dh' (h - n) z (1 - z) go to r and
// z of both; dh = dh' z.
// LSTM (Hochreiter & Schmidhuber 1997), maps [..., 4H], c [..., H]: i, f, o = sigmoid(a + b), g = tanh(a + b),
// c' = f c + i g, h' = o tanh(c'). Saved: i, f, g side by side [..., 3H]; o and c' are outputs.
// Backward: u = dc' + dh' o (1 - tanh(c')^2), v = do + dh' tanh(c'). u g i (1 - i), u c f (1 - f), u i (1 - g^2) and
// v o (1 - o) go to i, f, g, o of both maps alike; dc = u f.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

TAP_KERNEL(gru_forward, const Tensor& from_input, const Tensor& from_state, const Tensor& h, Tensor& gates,
           Tensor& h_next)
TAP_KERNEL(gru_backward, const Tensor& dh_next, const Tensor& gates, const Tensor& h, Grad dfrom_input,
           Grad dfrom_state, Grad dh)

TAP_KERNEL(lstm_forward, const Tensor& from_input, const Tensor& from_state, const Tensor& c, Tensor& gates, Tensor& o,
           Tensor& c_next, Tensor& h_next)
// Each of dh_next, dc_next and d_o may be empty. dgates [..., 4H] is the gradient of both maps; empty: not wanted.
TAP_KERNEL(lstm_backward, const Tensor& dh_next, const Tensor& dc_next, const Tensor& d_o, const Tensor& gates,
           const Tensor& o, const Tensor& c, const Tensor& c_next, Tensor& dgates, Grad dc)

}  // namespace tapestry
