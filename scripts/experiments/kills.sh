#!/usr/bin/env bash
# Kills `reef train` fifty times at random moments and checks what is left: one chain without gaps, every report used
# exactly once, no files of a step. About two minutes.
#
#   scripts/experiments/kills.sh [SEED]
set -euo pipefail
cd "$(dirname "$0")/../.."
REEF_KILLS=50 REEF_KILL_SEED=${1:-1} cargo test --no-default-features --features failpoints --test train_loop -- \
    --exact kills_at_random_moments_lose_nothing_and_train_nothing_twice --nocapture
