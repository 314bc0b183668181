#!/usr/bin/env bash
# Figures of the release chain. Needs git, git-lfs and a quiet machine; everything happens in a temporary directory.
#   scripts/bench/release.sh            the full size: 10,000 releases, 1,000 rounds (about ten minutes)
#   RELEASES=200 ROUNDS=20 scripts/bench/release.sh    a quick look
#   FEATURES="--no-default-features" builds without libtorch
#   REEF and REEF_RELEASE_TESTS name programs built before; a debug build of the second gives upper limits
set -euo pipefail
cd "$(dirname "$0")/../.."
releases=${RELEASES:-10000}
rounds=${ROUNDS:-1000}
features=${FEATURES:-}
if [ -z "${REEF:-}" ]; then
    # shellcheck disable=SC2086
    cargo build --release $features
fi
reef=${REEF:-$PWD/target/release/reef}
program=${REEF_RELEASE_TESTS:-}
if [ -z "$program" ]; then
    # The long chain and the race run inside the test program; optimised, so that the figures are those of the product.
    # shellcheck disable=SC2086
    program=$(cargo test --release $features --test release --no-run --message-format=json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*release-[^"]*\)".*/\1/p' | tail -1)
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/home"
export HOME="$work/home"
git lfs install --skip-repo >/dev/null
git config --global user.email bench@localhost
git config --global user.name bench

now() { date +%s%N; }
# Best of N runs of a command, in milliseconds; "before" prepares each run and is not timed.
best() {
    local runs=$1 before=$2 best=
    shift 2
    for _ in $(seq "$runs"); do
        $before
        local from to ms
        from=$(now); "$@" >/dev/null; to=$(now)
        ms=$(((to - from) / 1000000))
        if [ -z "$best" ] || [ "$ms" -lt "$best" ]; then best=$ms; fi
    done
    echo "$best"
}

echo "== machine: $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $("$reef" --version), $(git --version), $(git lfs version)"

cd "$work"
mkdir a hand
echo '{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "bench"}' | tee a/adapter_config.json >hand/adapter_config.json
# An adapter of 20 MB of noise.
adapter() {
    printf '\252\000\000\000\000\000\000\000'
    printf '%s' '{"q.lora_A.weight":{"dtype":"U8","shape":[8,1250000],"data_offsets":[0,10000000]},"q.lora_B.weight":{"dtype":"U8","shape":[1250000,8],"data_offsets":[10000000,20000000]}}'
    head -c 20000000 /dev/urandom
}
fresh_reef() { adapter >a/adapter_model.safetensors; }
fresh_hand() { adapter >hand/adapter_model.safetensors; }
nothing() { :; }
"$reef" scenario create s -q
git init -q hand
echo '*.safetensors filter=lfs diff=lfs merge=lfs -text' >hand/.gitattributes
by_hand() { git -C hand add -A && git -C hand commit -qm release; }
start_ms=$(best 5 nothing "$reef" --version)
reef_ms=$(best 5 fresh_reef "$reef" release import a -q)
hand_ms=$(best 5 fresh_hand by_hand)
echo "publish a 20 MB adapter: reef $reef_ms ms (of which $start_ms ms to start the program), by hand $hand_ms ms, ratio $(awk "BEGIN {printf \"%.2f\", $reef_ms / $hand_ms}") (limit 1.50)"

before=$(du -sb .reef/artifacts.git/lfs/objects | cut -f1)
for _ in 1 2 3; do "$reef" release import a -q >/dev/null; done
after=$(du -sb .reef/artifacts.git/lfs/objects | cut -f1)
echo "the same content three times more: $((after - before)) more bytes of objects (limit 0)"

mkdir chain
REEF_BENCH_DIR="$work/chain" REEF_BENCH_RELEASES=$releases "$program" bench::a_long_chain --exact --ignored --nocapture |
    grep -E ' ms' | sed 's/^/chain: /'
cd chain
echo "reef release list: $(best 5 nothing "$reef" release list) ms; --all --json: $(best 5 nothing "$reef" release list --all --json) ms, $releases releases (limit 50, beside $start_ms to start)"
"$reef" release gc -q
echo "after gc: reef release list $(best 5 nothing "$reef" release list) ms"
cd ..

from=$(now)
REEF_RACE_ROUNDS=$rounds "$program" race::of_sixteen_processes_one_wins_each_round --exact | grep -E 'test result'
echo "race: 16 processes, $rounds rounds, one winner each, no orphan: $((($(now) - from) / 1000000)) ms"

mkdir crash && cd crash
"$reef" scenario create s -q
cp -r ../a .
"$reef" release import a -q >/dev/null
for n in 1 2 3 4 5; do
    adapter >a/adapter_model.safetensors
    "$reef" release import a -q >/dev/null 2>&1 &
    sleep "0.0$((n * 2))"
    kill -9 $! 2>/dev/null || true
    wait $! 2>/dev/null || true
    from=$(now); "$reef" release list --json >/dev/null; ms=$((($(now) - from) / 1000000))
    "$reef" release verify -q
    echo "kill -9 after $((n * 20)) ms, restart: $ms ms (limit 1000), chain whole"
done
