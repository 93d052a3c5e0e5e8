#include "layers/recurrent.h"

#include <cmath>

#include "layers/init.h"

namespace tapestry {

namespace {

const CellConfig& checked(const CellConfig& config) {
  TAP_CHECK(config.in > 0 && config.hidden > 0, "cell: in and hidden must be at least 1, not ", config.in, " and ",
            config.hidden);
  return config;
}

void check_state(const Var& x, const Var& h, std::int64_t hidden) {
  TAP_CHECK(x.shape().rank() == 2 && h.shape() == (Shape{x.shape()[0], hidden}),
            "cell: x must be [B, in] and the state [B, ", hidden, "], not ", x.shape(), " and ", h.shape());
}

}  // namespace

CellMaps::CellMaps(const CellConfig& config, std::int64_t gates, Rng& rng)
    : input(checked(config).in, gates * config.hidden, rng, config.bias),
      state(config.hidden, gates * config.hidden, rng, config.bias) {
  const double bound = 1 / std::sqrt(static_cast<double>(config.hidden));
  for (Linear* map : {&input, &state}) {
    init::uniform(map->weight, rng, -bound, bound);
    if (map->bias) init::uniform(*map->bias, rng, -bound, bound);
  }
  if (!config.norm) return;
  input_norm.emplace(gates * config.hidden);
  state_norm.emplace(gates * config.hidden);
}

Var CellMaps::from_input(const Var& x) const { return input_norm ? (*input_norm)(input(x)) : input(x); }
Var CellMaps::from_state(const Var& h) const { return state_norm ? (*state_norm)(state(h)) : state(h); }

void CellMaps::visit(Visitor& v) {
  v("input", input);
  v("state", state);
  if (input_norm) v("input_norm", *input_norm);
  if (state_norm) v("state_norm", *state_norm);
}

Var RnnCell::operator()(const Var& x, const Var& h) const {
  check_state(x, h, maps.hidden());
  return tanh(maps.from_input(x) + maps.from_state(h));
}

Var GruCell::operator()(const Var& x, const Var& h) const {
  check_state(x, h, maps.hidden());
  return gru_gates(maps.from_input(x), maps.from_state(h), h);
}

LstmCell::LstmCell(const CellConfig& config, Rng& rng) : maps(config, 4, rng) {
  if (config.norm) cell_norm.emplace(config.hidden);
}

LstmCell::State LstmCell::operator()(const Var& x, const State& state) const {
  const std::int64_t n = maps.hidden();
  check_state(x, state.h, n);
  check_state(x, state.c, n);
  const auto [h, c, o] = lstm_gates(maps.from_input(x), maps.from_state(state.h), state.c);
  return {cell_norm ? o * tanh((*cell_norm)(c)) : h, c};
}

void LstmCell::visit(Visitor& v) {
  v("maps", maps);
  if (cell_norm) v("cell_norm", *cell_norm);
}

}  // namespace tapestry
