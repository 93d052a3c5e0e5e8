#!/usr/bin/env bash
# Writes the code blocks of README.md to files: ```cpp blocks as readme_<n>.cpp, ```sh blocks as readme_<n>.sh.
# usage: extract_readme.sh README.md OUT_DIR     Files that would not change keep their time stamps.
set -euo pipefail
readme=$1 out=$2
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
awk -v dir="$temp" '
  /^```/ { if (file) { close(file); file = "" } else if ($0 == "```cpp" || $0 == "```sh") { file = dir "/readme_" ++n "." substr($0, 4); printf "" > file }; next }
  file { print > file }' "$readme"
mkdir -p "$out"
for f in "$out"/readme_*; do [ -e "$temp/${f##*/}" ] || rm -f "$f"; done
for f in "$temp"/readme_*; do cmp -s "$f" "$out/${f##*/}" || cp "$f" "$out/"; done
