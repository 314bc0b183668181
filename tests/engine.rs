//! The embedded engine in this process: sameness of answers, exact capture, reuse, cancellation, fairness, new weights
//! under traffic.
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

#[path = "engine/rig.rs"]
mod rig;
#[path = "engine/sampling.rs"]
mod sampling;
#[path = "engine/scheduling.rs"]
mod scheduling;
#[path = "engine/soak.rs"]
mod soak;
#[path = "engine/updates.rs"]
mod updates;
