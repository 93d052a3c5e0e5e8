// Recurrent cells: one step of a sequence, x [B, in] and state [B, H] to the next state. Gates and parameters are
// PyTorch's: two affine maps, of the input and of the state, hold all gates side by side. Initial weights and biases
// are uniform within 1 / sqrt(H). With `norm` each map is followed by a LayerNorm over all its gates (Ba et al. 2016).
//
//   Var h = zeros({batch, 64});
//   for (const Var& x : steps) h = cell(x, h);
#pragma once

#include <optional>

#include "layers/layernorm.h"
#include "layers/linear.h"

namespace tapestry {

struct CellConfig {
  std::int64_t in = 0, hidden = 0;
  bool bias = true;
  bool norm = false;
};

// The two maps that every cell starts with, for `gates` gates.
class CellMaps : public Module {
 public:
  CellMaps(const CellConfig& config, std::int64_t gates, Rng& rng);
  Var from_input(const Var& x) const;  // [B, gates H]
  Var from_state(const Var& h) const;
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "CellMaps"; }
  std::int64_t hidden() const { return state.weight.shape()[0]; }

  Linear input, state;  // [in, gates H], [H, gates H]
  std::optional<LayerNorm> input_norm, state_norm;
};

// h' = tanh(input(x) + state(h))   (Elman 1990)
class RnnCell : public Module {
 public:
  RnnCell(const CellConfig& config, Rng& rng) : maps(config, 1, rng) {}
  Var operator()(const Var& x, const Var& h) const;
  void visit(Visitor& v) override { v("maps", maps); }
  std::string_view kind() const override { return "RnnCell"; }

  CellMaps maps;
};

// r, z = sigmoid(input(x) + state(h)), n = tanh(input(x) + r * state(h)), each with its part of the maps;
// h' = (1 - z) * n + z * h   (Cho et al. 2014). Order of the gates: r, z, n.
class GruCell : public Module {
 public:
  GruCell(const CellConfig& config, Rng& rng) : maps(config, 3, rng) {}
  Var operator()(const Var& x, const Var& h) const;
  void visit(Visitor& v) override { v("maps", maps); }
  std::string_view kind() const override { return "GruCell"; }

  CellMaps maps;
};

// i, f, o = sigmoid(input(x) + state(h)), g = tanh(input(x) + state(h)), each with its part of the maps;
// c' = f * c + i * g, h' = o * tanh(c')   (Hochreiter & Schmidhuber 1997). Order of the gates: i, f, g, o.
// With `norm` the tanh sees a LayerNorm of c'.
class LstmCell : public Module {
 public:
  struct State {
    Var h, c;  // [B, H]
  };
  LstmCell(const CellConfig& config, Rng& rng);
  State operator()(const Var& x, const State& state) const;
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "LstmCell"; }

  CellMaps maps;
  std::optional<LayerNorm> cell_norm;
};

}  // namespace tapestry
