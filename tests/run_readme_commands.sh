#!/usr/bin/env bash
# Runs one ```sh block of the README in an empty folder where build/release is the built project and book.txt a text.
# usage: run_readme_commands.sh BLOCK.sh BUILD_DIR
set -euo pipefail
block=$(realpath "$1") build=$(realpath "$2")
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cd "$temp"
mkdir build && ln -s "$build" build/release
for i in $(seq 400); do echo "And it came to pass on day $i that the words were read, and the reader was glad."; done >book.txt
set -x
# shellcheck disable=SC1090  # the block under test
source "$block"
