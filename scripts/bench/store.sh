#!/usr/bin/env bash
# Times the experience store: durable appends at several loads, then the command line's reads on a store of ROWS records.
#   scripts/bench/store.sh [ROWS] [SECONDS]        (default 1000000 rows, 5 seconds for each load)
# Build first: cargo build --release --bin reef --example store_bench
set -euo pipefail
rows=${1:-1000000} seconds=${2:-5}
root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}/release
reef=$target/reef load=$target/examples/store_bench
for program in "$reef" "$load"; do
  [ -x "$program" ] || { echo "missing $program: cargo build --release --bin reef --example store_bench" >&2; exit 1; }
done
dir=$(mktemp -d "${TMPDIR:-/tmp}/reef-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT

echo "# durable appends"
for connections in 1 8 64; do "$load" "$dir/$connections.db" "$connections" "$seconds" 1024; done
"$load" "$dir/large.db" 8 "$seconds" 500000
rm -f "$dir"/*.db*

echo "# a store of $rows records (9 exchanges in 10, the rest reports on them)"
began=$(date +%s.%N)
awk -v rows="$rows" 'BEGIN {
  for (i = 0; i < rows; i++) {
    if (i % 10 == 9)
      printf "{\"agent_record_id\":\"p%d\",\"request_type\":\"report\",\"payload\":{\"score\":%.2f,\"references\":[\"r%d\"]}}\n", i, (i % 101) / 100, i - 1
    else
      printf "{\"agent_record_id\":\"r%d\",\"request_type\":\"inference\",\"payload\":{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"question %d\"}],\"metadata\":{\"tags\":{\"session\":\"s%d\"}},\"response\":{\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"message\":{\"role\":\"assistant\",\"content\":\"answer %d\"}}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}}}\n", i, i, i / 5, i
  }
}' | "$reef" --dir "$dir" -q records import - --scenario bench
took=$(echo "$(date +%s.%N) - $began" | bc)
echo "imported in ${took} s, $(du -m "$dir/experience.db" | cut -f1) MiB"

echo "# reads, median of 21 whole processes, milliseconds"
time_reads() {
  local name=$1; shift
  for _ in $(seq 21); do
    local from to
    from=$(date +%s%N); "$reef" --dir "$dir" --json "$@" > "$dir/out"; to=$(date +%s%N)
    echo $(( (to - from) / 1000 ))
  done | sort -n | awk -v name="$name" 'NR == 11 { printf "%-28s %6.1f\n", name, $1 / 1000 }'
}
time_reads "version (process alone)" --version
time_reads "records list" records list
time_reads "records list, one scenario" records list --scenario bench
time_reads "records list, middle" records list --scenario bench --after $((rows / 2))
time_reads "records list, reports" records list --scenario bench --kind report
time_reads "batch selection" records list --scenario bench --kind report --after $((rows / 2)) --unused-by policy --limit 64
time_reads "records show" records show r$((rows / 10 * 5))
time_reads "records stats" records stats
