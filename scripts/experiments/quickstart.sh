#!/usr/bin/env bash
# Five seeds of the quickstart with frozen and shuffled-reward controls; every run is reported. About 2.5 hours on two
# quiet cores. The results go to docs/design/data/quickstart/.
#
#   scripts/experiments/quickstart.sh [MINUTES]
set -euo pipefail
cd "$(dirname "$0")/../.."
minutes=${1:-8}
reef=${REEF:-$PWD/target/release/reef}
[ -x "$reef" ] || cargo build --release --quiet
work=${REEF_EXPERIMENT_DIR:-$(mktemp -d)}
out=docs/design/data/quickstart
mkdir -p "$out"
model=$work/models/smollm2
"$reef" --dir "$work" model list 2>/dev/null | grep -q smollm2 ||
    "$reef" --dir "$work" model import "$(python3 scripts/fetch-model.py)" --name smollm2
run() {
    local name=$1
    shift
    python3 scripts/experiments/quickstart.py --reef "$reef" --model "$model" --dir "$work/$name" --minutes "$minutes" "$@"
    cp "$work/$name/curve.csv" "$out/$name.csv"
    cp "$work/$name/summary.json" "$out/$name.json"
}
for seed in 1 2 3 4 5; do run "learned-$seed" --seed "$seed"; done
for seed in 1 2; do run "frozen-$seed" --seed "$seed" --control frozen; done
for seed in 1 2 3 4 5; do run "shuffled-$seed" --seed "$seed" --control shuffled; done
python3 - "$out" <<'PY'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    s = json.loads(path.read_text())
    print(f"{path.stem:12} held out {s['heldout_first']:.3f} -> {s['heldout_last']:.3f}  releases {s['releases']} refused {s['refused']} "
          f"steps {s['steps']}  failed requests {s['failed_requests']}/{s['requests']}")
PY
