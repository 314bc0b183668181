#!/usr/bin/env bash
# Served latency while a step is made against idle, and the time from a score to the release it made (see learning.py).
# Half of the cores train. About three minutes on two quiet cores.
#   scripts/bench/learning.sh [--steps N] [--idle SECONDS]
set -euo pipefail
cd "$(dirname "$0")/../.."
reef=${REEF:-$PWD/target/release/reef}
[ -x "$reef" ] || cargo build --release --quiet
store=$PWD/.reef
[ -d "$store/models/smollm2" ] || "$reef" --dir "$store" model import "$(python3 scripts/fetch-model.py)" --name smollm2 >&2
half=$((($(nproc) + 1) / 2))
python3 scripts/bench/learning.py --reef "$reef" --model "$store/models/smollm2" --training-threads "$half" "$@"
