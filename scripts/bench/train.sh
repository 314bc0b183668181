#!/usr/bin/env bash
# Times a LoRA step against PyTorch + peft (see train.py). Needs a Python with torch, transformers and peft:
#   python3 -m venv /tmp/bench && /tmp/bench/bin/pip install torch==2.13.0 transformers peft
#   PYTHON=/tmp/bench/bin/python scripts/bench/train.sh [--threads N] [--precision bf16] [--recompute] [--model DIR]
# Run it on a quiet machine: the figures of a busy one are noise.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -n "${REEF:-}" ] || cargo build --release --quiet
exec "${PYTHON:-python3}" scripts/bench/train.py --reef "${REEF:-target/release/reef}" "$@"
