#!/usr/bin/env bash
# Writes the blocks of a README that are tested to files: ```cpp as <prefix>_<n>.cpp, ```sh as <prefix>_<n>.sh, and
# ```text after a line "<!-- printed by COMMAND -->" as <prefix>_<n>.printed, the command in its first line.
# usage: extract_readme.sh README.md OUT_DIR PREFIX     Files that would not change keep their time stamps.
set -euo pipefail
readme=$1 out=$2 prefix=$3
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
awk -v start="$temp/$prefix" '
  function open(kind) { file = start "_" ++n "." kind; printf "" > file }
  /^```/ {
    if (inside) { inside = 0; if (file) close(file); file = "" }
    else {
      inside = 1
      if ($0 == "```cpp" || $0 == "```sh") open(substr($0, 4))
      else if ($0 == "```text" && command) { open("printed"); print command > file }
    }
    command = ""
    next
  }
  inside { if (file) print > file; next }
  sub(/^<!-- printed by /, "") { sub(/ -->$/, ""); command = $0 }' "$readme"
mkdir -p "$out"
for f in "$out/$prefix"_*; do [ -e "$temp/${f##*/}" ] || rm -f "$f"; done
for f in "$temp/$prefix"_*; do [ ! -e "$f" ] || cmp -s "$f" "$out/${f##*/}" || cp "$f" "$out/"; done
