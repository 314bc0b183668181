#!/usr/bin/env bash
# Everything that must hold before a change lands: set-up, format, lints, documentation, all tests, the build without
# libtorch, and real clients and agents from their registries against the program. Says how long each part took; stops
# at the first part that fails.
set -euo pipefail
cd "$(dirname "$0")/.."

start=$SECONDS
part() {
    local name=$1 before=$SECONDS
    shift
    echo "== $name"
    if ! "$@"; then
        echo "== $name: FAILED after $((SECONDS - before)) s" >&2
        exit 1
    fi
    echo "== $name: ok in $((SECONDS - before)) s"
}

part "set-up" ./scripts/setup.sh
export PATH="$HOME/.cargo/bin:$PATH"
# A test that waits for processes should not wait for a colour terminal, a pager or a prompt.
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto} GIT_TERMINAL_PROMPT=0 NO_COLOR=1

part "format" cargo fmt --check
part "lints" cargo clippy --quiet --all-targets --features failpoints -- -D warnings
part "check without libtorch" cargo check --quiet --all-targets --no-default-features
part "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --features failpoints
part "tests" cargo test --quiet --no-fail-fast --features failpoints

# A registry out of reach is the only reason to leave the real clients out, and it is said aloud.
clients=0
./scripts/clients.sh || clients=$?
case $clients in
    0) part "real clients" env REEF_CLIENTS=required cargo test --quiet --features failpoints --test clients ;;
    75) echo "== real clients: SKIPPED, a registry cannot be reached" ;;
    *) echo "== real clients: FAILED to install" >&2; exit 1 ;;
esac
agents=0
./scripts/agents.sh || agents=$?
case $agents in
    0) part "real agents" env REEF_AGENTS=required cargo test --quiet --features failpoints --test agents ;;
    75) echo "== real agents: SKIPPED, a registry cannot be reached" ;;
    *) echo "== real agents: FAILED to install" >&2; exit 1 ;;
esac
echo "== all parts passed in $((SECONDS - start)) s"
