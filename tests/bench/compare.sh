#!/usr/bin/env bash
# Training steps of Tapestry and of other frameworks in turn, as a table for each model.
# usage: compare.sh VENV [CONFIG...]      configs: tiny c384 g124 (all of them if none is given)
#   VENV     a Python environment with torch, and with jax and mlx if they are to be compared
#   PEERS    folder of the peers' scripts (default: shared/peers beside the repository)
#   COMMAND  the tapestry command (default: build/release/tapestry)
#   THREADS  "2 1" by default        ROUNDS  3 by default        DTYPE  f32 by default, or bf16 (Autocast in both)
# Run nothing else meanwhile. Ratios above 1: slower than Tapestry in the same round.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
venv=${1:?usage: compare.sh VENV [CONFIG...]}
shift
peers=${PEERS:-$repository/../shared/peers}
command=${COMMAND:-$repository/build/release/tapestry}
[ -x "$command" ] || { echo "compare.sh: $command is missing; build the release preset first, or set COMMAND" >&2; exit 1; }
if [ ! -f "$peers/compare.py" ] || [ ! -x "$venv/bin/python" ]; then
  echo "compare.sh: skipped: no peers' scripts in $peers, or no Python in $venv"
  exit 77
fi
unset OPENBLAS_CORETYPE OMP_NUM_THREADS OPENBLAS_NUM_THREADS
[ $# -gt 0 ] || set -- tiny c384 g124
for config in "$@"; do
  for threads in ${THREADS:-2 1}; do
    echo "## $config, $threads threads"
    peer() { echo "$venv/bin/python $peers/$1_gpt.py --config $config --threads $threads ${*:2}"; }
    ours="$command bench step --config $config --threads $threads"
    if [ "${DTYPE:-f32}" = bf16 ]; then
      python3 "$peers/compare.py" --rounds "${ROUNDS:-3}" "$ours --dtype bf16" "$ours" \
        "$(peer torch --compile --dtype bf16)" "$(peer torch --dtype bf16)"
      continue
    fi
    commands=("$ours" "$(peer torch)" "$(peer torch --compile)")
    if "$venv/bin/python" -c 'import jax' 2>/dev/null; then commands+=("$(peer jax)"); fi
    if [ "$config" = tiny ] && "$venv/bin/python" -c 'import mlx' 2>/dev/null; then
      commands+=("env LD_PRELOAD=libopenblas.so.0 $(peer mlx --compile --steps 20)")
    fi
    python3 "$peers/compare.py" --rounds "${ROUNDS:-3}" "${commands[@]}"
  done
done
