#!/usr/bin/env bash
# The whole circle of an evolving harness with the real Pi, no GPU and no internet once Pi is installed: three coding tasks
# fail through reef-pi, the runs are graded with reef-pi report, a change is proposed, Pi does the suite's tasks on both
# trees in sandboxes, the gate decides, the release is installed with reef-pi update, and the same three tasks pass.
# Prints each stage; ends by itself in minutes, with an error where the machine gives no namespaces. The model is scripted
# (tests/evolution/coder.rs): it writes right programs only where the harness tells it to try them.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/agents.sh pi
export PATH="$HOME/.cargo/bin:$PATH"
export REEF_AGENTS=required REEF_STORY=1
cargo test --quiet --no-default-features --features failpoints --test evolution_agent -- --nocapture an_agent_that_fails
