#!/usr/bin/env bash
# The main job on this machine alone, made to take ten minutes after set-up: builds Reef, serves a small model with
# `reef serve -c recipes/sao/examples/quickstart/serve.toml`, sends it support tickets, reports whether the answers were
# right, and shows the reward on held-out tickets rise while it serves: releases through the gate under traffic, a candidate
# refused, a rollback and the way back. Installs what it needs (scripts/setup.sh); can be run again at any time.
#
#   scripts/quickstart.sh [DIR]     everything the run writes goes to DIR [.reef/quickstart/<time>]
#
# REEF_NO_TORCH=1 leaves the embedded model out and shows receipts and reports in front of a provider instead.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${REEF_NO_TORCH:-}" = 1 ]; then exec ./scripts/quickstart-gateway.sh; fi

./scripts/setup.sh
export PATH="$HOME/.cargo/bin:$PATH"
echo "quickstart: building (some minutes the first time)"
cargo build --release --quiet
reef=${CARGO_TARGET_DIR:-$PWD/target}/release/reef

work=${1:-$PWD/.reef/quickstart/$(date +%Y%m%d-%H%M%S)}
store=$PWD/.reef
mkdir -p "$work"
[ -d "$store/models/smollm2" ] || {
    echo "quickstart: fetching SmolLM2-135M-Instruct (93 MB) and converting it"
    "$reef" --dir "$store" model import "$(python3 scripts/fetch-model.py)" --name smollm2
}
echo "quickstart: serving, asking, grading, learning; up to ten minutes. Files: $work"
python3 scripts/quickstart.py --reef "$reef" --model "$store/models/smollm2" --dir "$work" --seed "${SEED:-1}" --minutes 8 --show
echo
echo "quickstart: the curve is $work/curve.svg, every row of it $work/curve.csv."
echo "Look around: reef --dir $work release log, records list, status; docs/quickstart.md says what you see."
