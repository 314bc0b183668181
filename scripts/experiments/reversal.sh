#!/usr/bin/env bash
# The learning experiment on a toy decoder: every arm over five seeds, with frozen and shuffled-reward controls.
# Writes one CSV line per arm, seed and step, and prints a summary. About ten minutes on two quiet cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-scripts/experiments/reversal.csv}
case $out in /*) ;; *) out=$PWD/$out ;; esac
REEF_REVERSAL_CSV=$out cargo test --release --lib train::backend::learning_tests::reversal_experiment -- --ignored --nocapture
echo "wrote $out" >&2
