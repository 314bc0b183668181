#!/usr/bin/env bash
# The main job in a minute, on this machine alone: build Reef, put it in front of a provider, send traffic through it, get
# receipts, report on the answers, and look at what was recorded. Installs what it needs (scripts/setup.sh), cleans up
# after itself, can be run again at any time.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

./scripts/setup.sh
export PATH="$HOME/.cargo/bin:$PATH"
echo "quickstart: building (some minutes the first time)"
features=()
[ "${REEF_NO_TORCH:-}" = 1 ] && features=(--no-default-features)
cargo build --quiet "${features[@]}"
reef=${CARGO_TARGET_DIR:-$root/target}/debug/reef

work=$(mktemp -d)
pids=()
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT
cd "$work"

# Waits until a file holds a line that matches, and prints what the pattern captured.
wait_for() {
    local file=$1 pattern=$2 found
    for _ in $(seq 300); do
        found=$(sed -n "s/$pattern/\1/p" "$file" 2>/dev/null | head -n1)
        [ -n "$found" ] && { echo "$found"; return; }
        sleep 0.1
    done
    echo "quickstart: $file never said where it listens:" >&2
    cat "$file" ./*.log >&2
    return 1
}
show() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

python3 "$root/scripts/quickstart_gateway_upstream.py" > provider.out 2> provider.log &
pids+=($!)
provider=$(wait_for provider.out '^\(http:.*\)$')

show "reef serve --upstream-url $provider --upstream-model adder"
"$reef" serve --json --port 0 --upstream-url "$provider" --upstream-model adder > reef.out 2> reef.log &
pids+=($!)
url=$(wait_for reef.out '.*"url":"\([^"]*\)".*')
echo "listening on $url, records in $work/.reef"

ask() {
    curl -sS --max-time 60 -D headers -o answer "$url/v1/chat/completions" \
        -H 'content-type: application/json' -H 'x-reef-scenario: arithmetic' \
        -d "{\"model\": \"adder\", \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}"
    python3 -c 'import json; print("answer: ", json.load(open("answer"))["choices"][0]["message"]["content"])'
    receipt=$(sed -n 's/^x-reef-agent-record-id: *\([^[:space:]]*\).*/\1/p' headers)
    echo "receipt: $receipt"
}
show "curl $url/v1/chat/completions -H 'x-reef-scenario: arithmetic' …  'What is 17 + 25?'"
ask "What is 17 + 25?"
show "reef report $receipt --score 1 --feedback right"
"$reef" report "$receipt" --score 1 --feedback right
show "curl …  'What is 170 + 250?'"
ask "What is 170 + 250?"
show "curl $url/reef/report …  a score of 0 with a reason"
curl -sS --max-time 60 "$url/reef/report" -H 'content-type: application/json' -H 'x-reef-scenario: arithmetic' \
    -d "{\"references\": [\"$receipt\"], \"score\": 0, \"feedback\": \"170 + 250 is 420\"}"
echo
show "curl -N …  the same, streamed: the receipt is in the last event before [DONE]"
curl -sSN --max-time 60 "$url/v1/chat/completions" -H 'content-type: application/json' -H 'x-reef-scenario: arithmetic' \
    -d '{"model": "adder", "stream": true, "messages": [{"role": "user", "content": "What is 1 + 2?"}]}' | tail -n 4

show "reef records list"
"$reef" records list
show "reef status"
"$reef" status
show "kill -TERM: the service drains and stops"
kill -TERM "${pids[1]}"
wait "${pids[1]}"
echo "stopped with exit code 0; the records stay readable without it:"
show "reef records export | head -c 300"
"$reef" records export | head -c 300
printf '\n\nquickstart: done. Next: reef init, docs/quickstart.md\n'
