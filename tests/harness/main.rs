//! Harness trees: what is admitted, what it renders to, and the routes that serve it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod binary;
mod cli;
mod evolution;
mod golden;
mod pages;
mod server;
