//! Reef as an operator runs it: who may read its files, what signals and service managers get, what a panic does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]
#![cfg(target_os = "linux")]

#[path = "operating/access.rs"]
mod access;
mod common;
#[path = "operating/panics.rs"]
mod panics;
#[path = "operating/service.rs"]
mod service;
