#!/bin/sh
# Are the programs there that pages are tested with? Chromium, node and npm: found, or installed where apt can, or named.
# Usage: tools/programs.sh chromium node npm
set -u
missing=""
for program in "$@"; do
  command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -z "$missing" ] && exit 0
packages=$(echo "$missing" | sed 's/\bnode\b/nodejs/')
root=""
[ "$(id -u)" = 0 ] || root="sudo -n"
if command -v apt-get >/dev/null 2>&1; then
  echo "installing$packages ..."
  export DEBIAN_FRONTEND=noninteractive
  $root apt-get update -qq >/dev/null 2>&1
  # shellcheck disable=SC2086
  $root apt-get install -y -qq --no-install-recommends $packages >/dev/null 2>&1
fi
for program in "$@"; do
  command -v "$program" >/dev/null 2>&1 || {
    echo "make needs $program to check and test the pages, and could not install it." >&2
    echo "Install it, such as by: apt-get install -y$packages" >&2
    exit 1
  }
done
