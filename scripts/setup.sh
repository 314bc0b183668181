#!/usr/bin/env bash
# Installs what building and testing Reef needs, and nothing that is there already. Safe to run again.
#
# System packages come from apt, and only when they are missing (as root or through sudo); libtorch comes from PyPI
# into third_party/libtorch (set LIBTORCH or LIBTORCH_USE_PYTORCH=1 to use another). REEF_NO_TORCH=1 leaves it out, for
# a build with --no-default-features.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }
has() { command -v "$1" >/dev/null 2>&1; }

packages=()
has git || packages+=(git)
has git-lfs || packages+=(git-lfs)
has curl || packages+=(curl)
{ has cc && has c++ && has make; } || packages+=(build-essential)
# The tests of the dashboard type into a real terminal.
has tmux || packages+=(tmux)
has python3 || packages+=(python3)
# Debian keeps pip and venv apart from Python.
{ has python3 && python3 -c 'import ensurepip, pip' 2>/dev/null; } || packages+=(python3-pip python3-venv)
[ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates)

if [ ${#packages[@]} -gt 0 ]; then
    if ! has apt-get; then
        say "please install: ${packages[*]}" >&2
        exit 1
    fi
    as_root=()
    if [ "$(id -u)" != 0 ]; then
        has sudo || { say "please run as root: apt-get install ${packages[*]}" >&2; exit 1; }
        as_root=(sudo)
    fi
    say "installing ${packages[*]}"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

if ! has cargo && [ -x "$HOME/.cargo/bin/cargo" ]; then
    export PATH="$HOME/.cargo/bin:$PATH"
fi
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! has cargo; then
    say "Rust $wanted or newer is needed; install it from https://rustup.rs and run this again" >&2
    exit 1
fi
have=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n1)" != "$wanted" ]; then
    say "Rust $wanted or newer is needed, this is $have; run: rustup update stable" >&2
    exit 1
fi

if [ "${REEF_NO_TORCH:-}" != 1 ]; then
    python3 scripts/fetch-libtorch.py
fi
say "ready"
