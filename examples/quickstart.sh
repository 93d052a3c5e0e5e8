#!/usr/bin/env bash
# From nothing to text: installs what is missing, builds, trains a small GPT for about two minutes, samples from it.
# usage: bash examples/quickstart.sh [options for tapestry train]
set -euo pipefail
cd "$(dirname "$0")/.."

started=$SECONDS
phase() { printf '\n== %s (at %d s)\n' "$1" $((SECONDS - started)); }

phase "packages"
bash examples/install.sh

phase "build"
cmake --preset release -DTAPESTRY_TESTS=OFF -B build/quickstart >build_quickstart.log 2>&1 &&
  cmake --build build/quickstart --target tapestry_command >>build_quickstart.log 2>&1 ||
  { tail -n 30 build_quickstart.log >&2; echo "the build failed; the whole log is build_quickstart.log" >&2; exit 1; }
rm -f build_quickstart.log
tapestry=build/quickstart/tapestry
"$tapestry" info

phase "text"
text=build/quickstart/text.txt
if [ ! -s "$text" ]; then
  if bash examples/install.sh bible-kjv bible-kjv-text; then
    # One verse a line, without its label such as "Gen1:1".
    bible -f 'Gen1:1-Rev22:21' | sed -E 's/^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ //' >"$text.new"
    echo "the King James Bible: $(wc -c <"$text.new") bytes"
  else
    find /usr/share/common-licenses -type f -exec cat {} + >"$text.new"
    echo "bible-kjv cannot be installed here; using the licence texts of this system: $(wc -c <"$text.new") bytes"
  fi
  mv "$text.new" "$text"
else
  echo "$text is there already"
fi

phase "train"
"$tapestry" train --data "$text" --max_iters 4500 --eval_interval 500 --log_interval 100 --time_budget 150s "$@"

phase "sample"
"$tapestry" sample --checkpoint out/checkpoint.h5 --prompt "In the beginning " --tokens 300 --temperature 0.8

phase "done"
cat <<TXT
What next:
  $tapestry sample --prompt "And God said" --tokens 1000      more text
  $tapestry train --resume --max_iters 9000                   train on
  $tapestry train --data YOUR.txt --out_dir mine              learn from a text of yours
  $tapestry gradcheck                                         check every gradient
  bash tests/run.sh                                           run all tests
TXT
