#!/usr/bin/env bash
# Speed of the embedded model in one run on this machine: prompt, one sequence, eight sequences, beside the limit that
# memory sets; and, where they are at hand, transformers and llama.cpp with the same weights, precision and threads.
#
#   scripts/bench/model.sh                                   reef alone
#   REEF_BENCH_PYTHON=venv/bin/python scripts/bench/model.sh     and transformers (needs torch and transformers)
#   REEF_BENCH_LLAMA=llama-bench scripts/bench/model.sh          and llama.cpp, on the GGUF file as it is (Q4_1)
#   REEF_BENCH_GGUF=DIR ...                                      and on DIR/f32.gguf, DIR/bf16.gguf (convert_hf_to_gguf.py)
#
# THREADS (default "1 2") and DTYPES (default "f32 bf16") narrow it down; REEF names a program built before. One JSON object a line on standard output.
set -euo pipefail
cd "$(dirname "$0")/../.."

reef=${REEF:-target/release/reef}
[ -n "${REEF:-}" ] || cargo build --release --quiet
models=$(mktemp -d)
trap 'rm -rf "$models"' EXIT
gguf=$(python3 scripts/fetch-model.py)
"$reef" model import "$gguf" --name smollm2 --models "$models" --quiet >/dev/null

for threads in ${THREADS:-1 2}; do
    for dtype in ${DTYPES:-f32 bf16}; do
        "$reef" bench model smollm2 --models "$models" --dtype "$dtype" --threads "$threads" --json
        if [ -n "${REEF_BENCH_PYTHON:-}" ]; then
            "$REEF_BENCH_PYTHON" scripts/bench/model_transformers.py "$models/smollm2" "$dtype" "$threads"
        fi
    done
    if [ -n "${REEF_BENCH_LLAMA:-}" ]; then
        for file in "$gguf" "${REEF_BENCH_GGUF:-/nowhere}"/{f32,bf16}.gguf; do
            [ -e "$file" ] || continue
            "$REEF_BENCH_LLAMA" -m "$file" -t "$threads" -p 512 -n 64 -r 3 -o jsonl
        done
    fi
done
