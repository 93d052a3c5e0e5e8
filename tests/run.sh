#!/usr/bin/env bash
# Runs every test: installs what is missing, builds and runs the sanitizer build's quick suites, then the release
# build's. Ends non-zero if anything fails.  usage: bash tests/run.sh [--slow]    --slow adds the suites labelled slow
set -euo pipefail
cd "$(dirname "$0")/.."

slow=(-LE slow)
[ "${1:-}" = --slow ] && slow=()
bash examples/install.sh hdf5-tools bible-kjv bible-kjv-text

status=0
for preset in dev release; do
  echo "== $preset"
  cmake --preset "$preset" >/dev/null
  nice cmake --build --preset "$preset"
  skip=("${slow[@]}")
  [ "$preset" = dev ] && skip=(-LE 'slow|release')
  ctest --preset "$preset" -j "$(nproc)" "${skip[@]}" || status=1
done
exit "$status"
