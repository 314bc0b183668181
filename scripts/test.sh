#!/usr/bin/env bash
# Everything that must hold before a change lands: set-up, format, all tests, lints, documentation, and real clients and
# agents from their registries against the program. Says how long each part took, goes on after a part that failed, and
# fails at the end.
#
# Whatever needs no libtorch is built and tested without it: that proves the small build, and its processes start in
# milliseconds where loading libtorch takes a third of a second. The engine, the trainer, the library's own tests and the
# real clients and agents then run in the full build.
set -euo pipefail
cd "$(dirname "$0")/.."

start=$SECONDS
failed=()
part() {
    local name=$1 before=$SECONDS
    shift
    echo "== $name"
    if "$@"; then
        echo "== $name: ok in $((SECONDS - before)) s"
    else
        echo "== $name: FAILED after $((SECONDS - before)) s" >&2
        failed+=("$name")
    fi
}

part "set-up" ./scripts/setup.sh
[ ${#failed[@]} -eq 0 ] || exit 1
export PATH="$HOME/.cargo/bin:$PATH"
# A test that waits for processes should not wait for a colour terminal, a pager or a prompt.
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto} GIT_TERMINAL_PROMPT=0 NO_COLOR=1
# One set of features for each build, so that nothing is compiled twice.
small=(--no-default-features --features failpoints)
full=(--features failpoints)
# Test files that need libtorch say so in one line; the rest ran in the small build.
needing_torch=()
for file in $(grep -l '^#!\[cfg(feature = "torch")\]' tests/*.rs); do
    needing_torch+=(--test "$(basename "$file" .rs)")
done

part "format" cargo fmt --all --check
part "tests of the small build" cargo test --quiet --no-fail-fast "${small[@]}" --test '*'
part "lints" cargo clippy --quiet --workspace --all-targets "${full[@]}" -- -D warnings
part "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps "${full[@]}"
part "tests of the kernels" cargo test --quiet --package reef-kernels
part "tests of the full build" cargo test --quiet --no-fail-fast "${full[@]}" --lib "${needing_torch[@]}"

# A registry out of reach is the only reason to leave the real clients out, and it is said aloud.
clients=0
./scripts/clients.sh || clients=$?
case $clients in
    0) part "real clients" env REEF_CLIENTS=required cargo test --quiet "${full[@]}" --test clients ;;
    75) echo "== real clients: SKIPPED, a registry cannot be reached" ;;
    *) echo "== real clients: FAILED to install" >&2; failed+=("installing the real clients") ;;
esac
agents=0
./scripts/agents.sh || agents=$?
case $agents in
    0) part "real agents" env REEF_AGENTS=required cargo test --quiet "${full[@]}" --test agents ;;
    75) echo "== real agents: SKIPPED, a registry cannot be reached" ;;
    *) echo "== real agents: FAILED to install" >&2; failed+=("installing the real agents") ;;
esac

if [ ${#failed[@]} -gt 0 ]; then
    printf '== FAILED: %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "== all parts passed in $((SECONDS - start)) s"
