#!/usr/bin/env bash
# Installs the built library to a temporary prefix and builds a program against it through CMake and pkg-config.
# usage: test_package.sh BUILD_DIR CXX
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1 cxx=$2
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT

cmake --install "$build" --prefix "$temp/prefix" >/dev/null
cmake -S "$here" -B "$temp/build" -DCMAKE_PREFIX_PATH="$temp/prefix" -DCMAKE_CXX_COMPILER="$cxx" >/dev/null
cmake --build "$temp/build"
"$temp/build/uses_tapestry"

if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$(find "$temp/prefix" -name pkgconfig)
  # shellcheck disable=SC2046  # the flags are words
  "$cxx" "$here/uses_tapestry.cpp" -o "$temp/by_pkg_config" \
    $(pkg-config --define-variable=prefix="$temp/prefix" --cflags --libs tapestry)
  "$temp/by_pkg_config"
else
  echo "pkg-config is not installed: skipped"
fi
