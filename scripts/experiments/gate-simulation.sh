#!/usr/bin/env bash
# Runs 1,000 simulated gate decisions for each rule and each kind of planted candidate (100 against a reference) and writes the table that
# docs/design/gate.md quotes. About ten minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
export REEF_SIMULATION_OUT="${1:-$PWD/docs/design/data/gate-simulation.csv}"
mkdir -p "$(dirname "$REEF_SIMULATION_OUT")"
# Optimised: a reference bets on 160 values at every run.
cargo test --quiet --config 'profile.dev.package.reef.opt-level=2' --no-default-features --features failpoints --test gate -- --ignored --exact simulation_table
cat "$REEF_SIMULATION_OUT"
