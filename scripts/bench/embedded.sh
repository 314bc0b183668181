#!/usr/bin/env bash
# Speed of the embedded engine through the whole program: one stream, eight streams, a long prompt beside them, and
# adapter swaps under traffic. Usage: scripts/bench/embedded.sh MODEL_DIR [THREADS] [DTYPE]
# Run it on a quiet machine; it prints one JSON object per measurement.
set -euo pipefail
cd "$(dirname "$0")/../.."
model=${1:?model directory} threads=${2:-$(nproc)} dtype=${3:-float32}
reef=${REEF:-target/release/reef}
[ -n "${REEF:-}" ] || cargo build --quiet --release
work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE} "$reef" serve --json --storage.dir "$work/.reef" \
    --reef.port 0 --inference.model-path "$model" --inference.threads "$threads" --inference.dtype "$dtype" \
    --inference.max-batch 8 --inference.context 2048 >"$work/out" 2>"$work/err" &
server=$!
for _ in $(seq 300); do
    grep -q listening "$work/out" && break
    kill -0 "$server" 2>/dev/null || { cat "$work/err" >&2; exit 1; }
    sleep 0.1
done
url=$(python3 -c 'import json,sys; print(json.loads(open(sys.argv[1]).readline())["url"])' "$work/out")
python3 scripts/bench/embedded.py "$url"
echo "# swaps of an adapter of rank 16 on every projection, under eight streams" >&2
# A debug build runs the same kernels; REEF_ENGINE_TESTS names one that is there, and its figures are upper limits.
if [ -n "${REEF_ENGINE_TESTS:-}" ]; then
    REEF_BENCH_MODEL="$model" "$REEF_ENGINE_TESTS" --nocapture bench_swap
else
    REEF_BENCH_MODEL="$model" cargo test --quiet --release --test engine -- --nocapture bench_swap
fi
