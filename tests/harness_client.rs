//! Agents on a user's machine: installing, running, grading, going back and removing, with the real program, a scripted
//! service and a small stand-in for an agent. `tests/agents.rs` does it with real ones.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

mod common;

#[path = "harness_client/crash.rs"]
mod crash;
#[path = "harness_client/grading.rs"]
mod grading;
#[path = "harness_client/installing.rs"]
mod installing;
#[path = "harness_client/rig.rs"]
mod rig;
#[path = "harness_client/running.rs"]
mod running;
