#!/usr/bin/env bash
# Five seeds of the quickstart with frozen and shuffled-reward controls; every run is reported. The results go to
# docs/design/data/quickstart/. Bounded by REEF_EXPERIMENT_MINUTES; a run that has its summary is not run again, so the
# script can be stopped and started until all are there. REEF_EXPERIMENT_JOBS runs at a time, with the cores shared out.
#
#   scripts/experiments/quickstart.sh [NAME...]      learned-1 ... learned-5, shuffled-1 ..., frozen-1 ...; default: all
set -euo pipefail
cd "$(dirname "$0")/../.."
reef=${REEF:-$PWD/target/release/reef}
[ -x "$reef" ] || cargo build --release --quiet
work=${REEF_EXPERIMENT_DIR:-$PWD/.reef/experiment}
out=${REEF_EXPERIMENT_OUT:-docs/design/data/quickstart}
deadline=$(($(date +%s) + ${REEF_EXPERIMENT_MINUTES:-240} * 60))
jobs=${REEF_EXPERIMENT_JOBS:-1}
threads=$((($(nproc) + jobs - 1) / jobs))
rounds=${REEF_EXPERIMENT_ROUNDS:-12}
mkdir -p "$out" "$work"
model=$work/models/smollm2
[ -d "$model" ] || "$reef" --dir "$work" model import "$(python3 scripts/fetch-model.py)" --name smollm2

run() {
    local name=$1 kind=${1%-*} seed=${1##*-}
    if [ -f "$out/$name.json" ]; then echo "$name: done before"; return; fi
    if [ "$(date +%s)" -ge "$deadline" ]; then echo "$name: no time left, left out"; return; fi
    rm -rf "${work:?}/$name"
    local -a how=(--seed "$seed" --minutes 60 --rounds "$rounds" --set "inference.threads=$threads")
    case $kind in
        learned) how+=(--releases 3) ;;
        # More steps than a learning run needs for its three releases.
        shuffled) how+=(--control shuffled --releases 0 --rounds "${REEF_CONTROL_ROUNDS:-6}") ;;
        # The weights never move, so a few rounds say all there is to say.
        frozen) how+=(--control frozen --releases 0 --rounds 3) ;;
        *) echo "unknown run $name" >&2; return 2 ;;
    esac
    OMP_NUM_THREADS=$threads python3 scripts/quickstart.py --reef "$reef" --model "$model" --dir "$work/$name" "${how[@]}" > "$work/$name.log" 2>&1 ||
        { echo "$name: failed; see $work/$name.log" >&2; return 1; }
    cp "$work/$name/curve.csv" "$out/$name.csv"
    cp "$work/$name/summary.json" "$out/$name.json"
    rm -rf "${work:?}/$name"
    echo "$name: done"
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    names=(learned-1 learned-2 learned-3 learned-4 learned-5 shuffled-1 shuffled-2 shuffled-3 shuffled-4 shuffled-5 frozen-1 frozen-2)
fi
for name in "${names[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    run "$name" &
done
wait
python3 scripts/plot_learning.py "$out" -o "$out/curves.svg"
python3 - "$out" <<'PY'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    s = json.loads(path.read_text())
    print(f"{path.stem:12} held out {s['heldout_first']:.3f} -> {s['heldout_last']:.3f} "
          f"(greedy {s['greedy_first']:.3f} -> {s['greedy_last']:.3f})  steps {s['steps']:2} released {s['releases']} "
          f"refused {s['refused']}  broken grader {s['broken_grader'] or '-':9} failed requests {s['failed_requests']}/{s['requests']}  {s['seconds']:.0f} s")
PY
