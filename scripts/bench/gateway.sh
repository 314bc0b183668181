#!/usr/bin/env bash
# Measures the gateway against a mock provider, and upstream's reef-infra (PyPI) on the same work in the same run.
#
#   scripts/bench/gateway.sh [--seconds N] [--quick] [--no-python]
#
# REEF_BIN names a reef to measure instead of building one. The figures mean something on a quiet machine only: mock,
# load generator and service share its cores. Every part checks that it handed out as many receipts as there are rows.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=10 long=60 open=1000 python=yes
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift 2 ;;
    --quick) seconds=2 long=4 open=200; shift ;;
    --no-python) python=no; shift ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
done
ulimit -n 16384 2>/dev/null || ulimit -n "$(ulimit -Hn)"

out=target/bench-gateway
rm -rf "$out"; mkdir -p "$out"
if [ -z "${REEF_BIN:-}" ]; then
  cargo build --release
  REEF_BIN=target/release/reef
fi
REEF_BIN=$(realpath "$REEF_BIN")
CARGO_TARGET_DIR=target/bench-tools cargo build -q --release --manifest-path scripts/bench/tools/Cargo.toml
mock=target/bench-tools/release/mock load=target/bench-tools/release/load

pids=()
cleanup() { for pid in "${pids[@]}"; do kill -- "$pid" 2>/dev/null || true; done; }
trap cleanup EXIT

# A mock with these options; its address goes to $address.
start_mock() {
  local log="$out/mock-$RANDOM.log"
  "$mock" "$@" >"$log" & pids+=($!)
  until [ -s "$log" ]; do sleep 0.05; done
  address=$(head -1 "$log")
}

# A service in a fresh directory in front of $1; its address goes to $service, its process to $pid.
start_reef() {
  local dir="$out/files-$2"
  mkdir -p "$dir"
  (cd "$dir" && exec "$REEF_BIN" serve --json --port 0 --upstream-url "http://$1") >"$dir/events" 2>"$dir/log" &
  pid=$!; pids+=("$pid")
  until grep -q '"listening"' "$dir/events"; do kill -0 "$pid" || { cat "$dir/log" >&2; exit 1; }; sleep 0.05; done
  service=$(sed -n 's/.*"address": *"\([^"]*\)".*/\1/p' "$dir/events" | head -1)
}

# The figure $2 (or $2.$3) of the result in file $1.
figure() {
  if [ $# -eq 3 ]; then sed -n "s/.*\"$2\":{[^}]*\"$3\":\([0-9.]*\).*/\1/p" "$1"; else sed -n "s/.*\"$2\":\([0-9.]*\).*/\1/p" "$1"; fi
}
minus() { awk "BEGIN { printf \"%.0f\", $1 - $2 }"; }
over() { awk "BEGIN { printf \"%.1f\", $1 / ($2 > 0 ? $2 : 1) }"; }
milli() { awk "BEGIN { printf \"%.2f ms\", $1 / 1000 }"; }
resident() { awk '/VmRSS/ { printf "%.0f", $2 / 1024 }' "/proc/$1/status"; }

rows=()
row() { rows+=("| $1 | $2 | $3 |"); echo "  $1: $2 (target $3)"; }

receipts=0
count() {
  receipts=$((receipts + $(figure "$1" receipts)))
  local errors; errors=$(figure "$1" errors)
  [ "$errors" -eq 0 ] || echo "  warning: $errors errors in $1" >&2
}
# Compares receipts handed out with rows readable afterwards.
parity() {
  kill -TERM "$pid"; wait "$pid" || true
  local stored
  stored=$(cd "$out/files-$1" && "$REEF_BIN" records stats --json | sed -n 's/.*"exchanges": *\([0-9]*\).*/\1/p' | head -1)
  row "$1: receipts handed out / rows readable" "$receipts / $stored" "equal"
  receipts=0
}

echo "whole answers of 1 KB"
start_mock --answer-bytes 1024; mock_address=$address
start_reef "$mock_address" whole
"$load" --target "$mock_address" --seconds "$seconds" >"$out/mock-64"
"$load" --target "$service" --seconds "$seconds" >"$out/reef-64"; count "$out/reef-64"
"$load" --target "$mock_address" --connections 1 --seconds "$seconds" >"$out/mock-1"
"$load" --target "$service" --connections 1 --seconds "$seconds" >"$out/reef-1"; count "$out/reef-1"
"$load" --target "$mock_address" --rate 1000 --seconds "$seconds" >"$out/mock-rate"
"$load" --target "$service" --rate 1000 --seconds "$seconds" >"$out/reef-rate"; count "$out/reef-rate"
parity whole
row "requests/s, 64 connections, recorded" "$(figure "$out/reef-64" per_second)" ">= 12x reef-infra"
row "mock alone, 64 connections, requests/s" "$(figure "$out/mock-64" per_second)" "-"
row "latency at one connection, p50" "$(milli "$(figure "$out/reef-1" latency_us p50)") (mock $(milli "$(figure "$out/mock-1" latency_us p50)"))" "-"
for share in p50 p99; do
  added=$(minus "$(figure "$out/reef-rate" latency_us $share)" "$(figure "$out/mock-rate" latency_us $share)")
  row "added at 1,000 requests/s, $share" "$(milli "$added")" "<= $([ $share = p50 ] && echo 1 || echo 5) ms"
done

# Upstream's newest needs Python 3.12; PYTHON names another one.
upstream_python=
for candidate in ${PYTHON:-python3.13 python3.12 python3}; do
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then upstream_python=$candidate; break; fi
done
if [ "$python" = yes ] && [ -z "$upstream_python" ]; then
  echo "upstream's reef-infra is left out: it needs Python 3.12 or newer (PYTHON=… names one)"
elif [ "$python" = yes ]; then
  infra_version=0.1.3
  venv=target/bench-venv-$infra_version
  [ -x "$venv/bin/reef" ] || { "$upstream_python" -m venv "$venv" && "$venv/bin/pip" install -q "reef-infra==$infra_version"; }
  echo "upstream's reef-infra $infra_version under $("$venv/bin/python" --version) on the same work"
  dir="$out/reef-infra"; mkdir -p "$dir"
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  venv_reef=$(realpath -s "$venv/bin/reef")
  # Its command starts processes of its own, which end with their group.
  (cd "$dir" && exec setsid "$venv_reef" serve --inference.upstream-url "http://$mock_address" \
    --inference.upstream-model mock --reef.port "$port") >"$dir/log" 2>&1 &
  infra=$!; pids+=("-$infra")
  until curl -sf "http://127.0.0.1:$port/healthz" >/dev/null; do kill -0 "$infra" || { cat "$dir/log" >&2; exit 1; }; sleep 0.2; done
  "$load" --target "127.0.0.1:$port" --seconds "$seconds" >"$out/infra-64"
  "$load" --target "127.0.0.1:$port" --connections 1 --seconds "$seconds" >"$out/infra-1"
  kill -- "-$infra"; wait "$infra" 2>/dev/null || true
  row "reef-infra, 64 connections, requests/s" "$(figure "$out/infra-64" per_second)" "-"
  row "reef-infra, one connection, p50" "$(milli "$(figure "$out/infra-1" latency_us p50)")" "-"
  row "times reef-infra" "$(over "$(figure "$out/reef-64" per_second)" "$(figure "$out/infra-64" per_second)")x" ">= 12x, aim 20x"
fi

echo "streams of 100 chunks"
start_mock --chunks 100 --interval-us 2000
start_reef "$address" streams
"$load" --target "$address" --stream --connections 16 --seconds "$seconds" >"$out/mock-stream"
"$load" --target "$service" --stream --connections 16 --seconds "$seconds" >"$out/reef-stream"; count "$out/reef-stream"
parity streams
row "added time to first byte, p99" "$(milli "$(minus "$(figure "$out/reef-stream" first_byte_us p99)" "$(figure "$out/mock-stream" first_byte_us p99)")")" "<= 2 ms"
row "delay of a chunk, p99" "$(milli "$(figure "$out/reef-stream" chunk_delay_us p99)") (mock $(milli "$(figure "$out/mock-stream" chunk_delay_us p99)"))" "none held back"

echo "$open open streams"
start_mock --chunks 40 --interval-us 250000
start_reef "$address" open
before=$(resident "$pid")
"$load" --target "$service" --stream --connections "$open" --warm 0 --seconds 5 >"$out/reef-open" & loading=$!
sleep 5
row "$open streams open, resident" "$(resident "$pid") MB (idle $before MB)" "<= 200 MB"
wait "$loading"; count "$out/reef-open"
parity open

echo "8 clients with 500 kB bodies for $long s"
start_mock --answer-bytes 1024; mock_address=$address
start_reef "$mock_address" large
"$load" --target "$mock_address" --connections 8 --rate 80 --body-bytes 500000 --seconds "$seconds" >"$out/mock-large"
"$load" --target "$service" --connections 8 --rate 80 --body-bytes 500000 --seconds "$long" >"$out/reef-large" & loading=$!
sleep $((long / 3)); early=$(resident "$pid")
sleep $((long / 3)); late=$(resident "$pid")
wait "$loading"; count "$out/reef-large"
parity large
row "500 kB bodies, resident after a third / two thirds" "$early / $late MB" "flat"
row "500 kB bodies, added p95" "$(milli "$(minus "$(figure "$out/reef-large" latency_us p95)" "$(figure "$out/mock-large" latency_us p95)")")" "<= 20 ms"

echo
echo "| what | measured | target |"
echo "|---|---|---|"
printf '%s\n' "${rows[@]}"
