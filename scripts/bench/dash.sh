#!/usr/bin/env bash
# What the dashboard costs while nothing happens: starts it in a terminal (tmux) on a store of ROWS records and three
# releases, and prints the share of one core that its process takes over SECONDS, on each screen named.
#   scripts/bench/dash.sh [SECONDS] [ROWS]        (default 30 seconds for each screen, 20000 rows)
# Build first: cargo build --release. REEF names another program. MOST=3 makes a share above 3 % a failure.
set -euo pipefail
seconds=${1:-30} rows=${2:-20000} most=${MOST:-}
root=$(cd "$(dirname "$0")/../.." && pwd)
reef=${REEF:-${CARGO_TARGET_DIR:-$root/target}/release/reef}
[ -x "$reef" ] || { echo "missing $reef: cargo build --release" >&2; exit 1; }
command -v tmux >/dev/null || { echo "tmux is not installed; scripts/setup.sh installs it" >&2; exit 1; }

work=$(mktemp -d "${TMPDIR:-/tmp}/reef-dash.XXXXXX")
screen() { env -i PATH="$PATH" HOME="$work" LANG=C.UTF-8 TERM=xterm-256color LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" tmux -S "$work/tmux" -f /dev/null "$@"; }
trap 'screen kill-server 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
run() { env -i PATH="$PATH" HOME="$work" LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" timeout 600 "$reef" -q "$@" >/dev/null; }

run scenario create bench
awk -v rows="$rows" 'BEGIN {
  for (i = 0; i < rows; i++) {
    if (i % 4 == 3)
      printf "{\"agent_record_id\":\"p%d\",\"request_type\":\"report\",\"payload\":{\"score\":%.2f,\"references\":[\"r%d\"]}}\n", i, (i % 101) / 100, i - 1
    else
      printf "{\"agent_record_id\":\"r%d\",\"request_type\":\"inference\",\"payload\":{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"question %d\"}],\"response\":{\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"message\":{\"role\":\"assistant\",\"content\":\"answer %d\"}}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}}}\n", i, i, i
  }
}' | run records import - --scenario bench
mkdir -p files/rules
for n in 1 2 3; do
  echo "rule $n" > files/rules/style.md
  run release import files --kind harness-tree -s bench --note "release $n"
done

# Hundredths of a second of processor time, all threads; the name in the second field may hold spaces.
ticks() { sed 's/^.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'; }

printf '#!/bin/sh\necho $$ > pid\nexec "%s" dash\n' "$reef" > start.sh
screen new-session -d -x 120 -y 40 "sh $work/start.sh"
shown() { screen capture-pane -p; }
await() {
  for _ in $(seq 300); do
    if shown | grep -q "$1"; then return; fi
    sleep 0.1
  done
  echo "the dashboard does not show \"$1\":" >&2
  shown >&2
  exit 1
}
await 'no service'
pid=$(cat pid)
per_second=$(getconf CLK_TCK)
echo "# share of one core while nothing happens, $seconds s each, $rows records ($("$reef" --version))"
worst=0
for view in 1:overview 2:traffic 3:training 4:releases 5:harness 6:logs; do
  screen send-keys "${view%%:*}"
  # What a change of the screen costs is not idle.
  sleep 3
  before=$(ticks "$pid"); from=$(date +%s%N)
  sleep "$seconds"
  after=$(ticks "$pid"); to=$(date +%s%N)
  share=$(awk -v t=$((after - before)) -v hz="$per_second" -v ns=$((to - from)) 'BEGIN { printf "%.2f", 100 * t / hz / (ns / 1e9) }')
  printf '%-10s %6s %%\n' "${view#*:}" "$share"
  worst=$(printf '%s\n%s\n' "$worst" "$share" | sort -n | tail -1)
done
echo "resident $(awk '/VmRSS/ { printf "%.0f", $2 / 1024 }' "/proc/$pid/status") MiB"
screen send-keys q
if [ -n "$most" ] && awk -v worst="$worst" -v most="$most" 'BEGIN { exit !(worst > most) }'; then
  echo "above $most %" >&2
  exit 1
fi
