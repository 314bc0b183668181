#!/usr/bin/env bash
# Installs the real coding agents that tests/agents.rs wraps, pinned, each in a folder of its own under
# $REEF_AGENTS_DIR (default ~/.cache/reef/clients/agents), with a Node of their own beside them. Safe to run again; what
# is complete is kept. Names on the command line choose some of them. Exits 75 when a registry cannot be reached, so that
# a caller can tell that from a failure.
set -euo pipefail
dir=${REEF_AGENTS_DIR:-$HOME/.cache/reef/clients/agents}
mkdir -p "$dir"

# name, npm package, version
agents="
pi @earendil-works/pi-coding-agent 0.84.2
codex @openai/codex 0.171.0
claude @anthropic-ai/claude-code 2.1.332
opencode opencode-ai 1.18.33
qwen @qwen-code/qwen-code 0.24.4
"
# Installed only when it is named: 650 MB, and minutes.
named="
openclaw openclaw 2026.9.6
"

command -v npm >/dev/null || { echo "agents: npm is not installed; the tests with real agents are left out" >&2; exit 75; }

add() {
    local name=$1 package=$2 version=$3
    if [ "$(cat "$dir/$name/complete" 2>/dev/null || true)" = "$package@$version" ]; then
        echo "agents: $name $version is in place"
        return
    fi
    rm -rf "${dir:?}/$name"
    mkdir -p "$dir/$name"
    if ! timeout 900 npm install --prefix "$dir/$name" --silent --no-audit --no-fund --fetch-retries 1 \
        "$package@$version" >"$dir/$name/npm.log" 2>&1; then
        if timeout 60 npm view --silent --fetch-retries 0 "$package@$version" version >/dev/null 2>&1; then
            cat "$dir/$name/npm.log" >&2
            echo "agents: $name $version cannot be installed" >&2
            exit 1
        fi
        echo "agents: the npm registry cannot be reached; the tests with $name are left out" >&2
        exit 75
    fi
    echo "$package@$version" > "$dir/$name/complete"
    echo "agents: $name $version is ready"
}

# The same from PyPI, in a virtual environment.
add_python() {
    local name=$1 package=$2 version=$3 known python=
    if [ "$(cat "$dir/$name/complete" 2>/dev/null || true)" = "$package@$version" ]; then
        echo "agents: $name $version is in place"
        return
    fi
    for known in python3 python3.13 python3.12 python3.11; do
        if "$known" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            python=$known
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "agents: $name needs Python 3.11 to 3.13 with venv; the tests with $name are left out" >&2
        return
    fi
    rm -rf "${dir:?}/$name"
    "$python" -m venv "$dir/$name"
    local pip=("$dir/$name/bin/python" -m pip --quiet --disable-pip-version-check --no-input --retries 1)
    if ! timeout 900 "${pip[@]}" install "$package==$version" >"$dir/$name/pip.log" 2>&1; then
        if timeout 120 "${pip[@]}" download --no-deps --dest "$dir/$name/probe" "$package==$version" >/dev/null 2>&1; then
            cat "$dir/$name/pip.log" >&2
            echo "agents: $name $version cannot be installed" >&2
            exit 1
        fi
        echo "agents: PyPI cannot be reached; the tests with $name are left out" >&2
        exit 75
    fi
    echo "$package@$version" > "$dir/$name/complete"
    echo "agents: $name $version is ready"
}

# Pi, Qwen Code and OpenClaw need newer Node than many systems have.
add node node 24.21.0
export PATH="$dir/node/node_modules/node/bin:$PATH"
while read -r name package version; do
    [ -n "$name" ] || continue
    if [ $# -eq 0 ] || [[ " $* " == *" $name "* ]]; then
        add "$name" "$package" "$version"
    fi
done <<< "$agents"
while read -r name package version; do
    if [ -n "$name" ] && [[ " $* " == *" $name "* ]]; then
        add "$name" "$package" "$version"
    fi
done <<< "$named"
if [ $# -eq 0 ] || [[ " $* " == *" hermes "* ]]; then
    add_python hermes hermes-agent 0.19.0
fi
