#!/usr/bin/env bash
# Is a block of a README what its program prints? Runs the command in the first line of the file within BUILD_DIR; the
# words that follow must stand there in this order, however the lines are broken. "..." stands for any words that were
# left out. Numbers agree within 1e-3, as their last digits differ between processors, and error bars (after "+-") may be
# anything.     usage: check_printed.sh BLOCK.printed BUILD_DIR
set -euo pipefail
block=$(realpath "$1")
cd "$2"
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
bash -c "$(head -n 1 "$block")" >"$printed"
awk '
  function number(word) { return word ~ /^-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?$/ }
  function agree(word, right, before,   end) {
    if (word == right) return 1
    end = word; sub(/^.*[^;:,)%]/, "", end); sub(/[;:,)%]+$/, "", word)
    if (end != "" && !sub(/[;:,)%]+$/, "", right)) return 0
    if (!number(word) || !number(right)) return 0
    return before == "+-" || (word - right) ^ 2 <= 1e-6 * right ^ 2
  }
  function stands_at(i, j) {  # wanted[j ...] in printed[i ...]
    for (; j <= wanted_count; ++j) {
      if (wanted[j] == "...") {
        for (; i <= printed_count + 1; ++i) if (stands_at(i, j + 1)) return 1
        return 0
      }
      if (i > printed_count || !agree(printed[i], wanted[j], printed[i - 1])) return 0
      ++i
    }
    return 1
  }
  FILENAME == ARGV[1] { if (FNR > 1) for (f = 1; f <= NF; ++f) wanted[++wanted_count] = $f; next }
  { for (f = 1; f <= NF; ++f) printed[++printed_count] = $f }
  END {
    for (i = 1; i <= printed_count; ++i) if (wanted_count && stands_at(i, 1)) exit 0
    print "these words are not what the program prints:"
    for (j = 1; j <= wanted_count; ++j) printf "%s ", wanted[j]
    print ""
    exit 1
  }' "$block" "$printed" || { echo "it prints:"; cat "$printed"; exit 1; }
