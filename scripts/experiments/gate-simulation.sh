#!/usr/bin/env bash
# Runs 2,000 simulated gate decisions for each rule and each kind of planted candidate (300 against a reference) and writes the table that
# docs/design/gate.md quotes. About ten minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
export REEF_SIMULATION_OUT="${1:-$PWD/docs/design/data/gate-simulation.csv}"
mkdir -p "$(dirname "$REEF_SIMULATION_OUT")"
cargo test --quiet --no-default-features --features failpoints --test gate -- --ignored --exact simulation_table
cat "$REEF_SIMULATION_OUT"
