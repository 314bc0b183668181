#!/usr/bin/env bash
# Lets each publication rule judge the same forty simulated proposals to one harness, twenty seeds, and writes the table
# that docs/design/evolution.md quotes: episodes spent, useless or harmful publications, true score at the end. About two
# minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
export REEF_SIMULATION_OUT="${1:-$PWD/docs/design/data/evolution-loop.csv}"
mkdir -p "$(dirname "$REEF_SIMULATION_OUT")"
# Optimised: a reference bets on 160 values at every run.
cargo test --quiet --config 'profile.dev.package.reef.opt-level=2' --no-default-features --features failpoints --test gate -- --ignored --exact evolving::loop_table
sed -n '/^rule,seeds/,$p' "$REEF_SIMULATION_OUT"
