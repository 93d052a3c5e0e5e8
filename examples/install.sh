#!/usr/bin/env bash
# Installs the Debian packages that the build needs and that are missing, plus those named as arguments.
# Needs root or sudo; without either it prints the one line to run and ends with 1. Does nothing when all are there.
set -euo pipefail

packages=(g++ cmake ninja-build ccache libeigen3-dev libhdf5-dev libcli11-dev nlohmann-json3-dev libfmt-dev
          libxxhash-dev doctest-dev "$@")
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root=(sudo)
  else
    echo "These packages are missing; please run this line as root and start again:" >&2
    echo "  apt-get update && apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
