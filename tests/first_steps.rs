//! What a newcomer does first, in the order the pages say: each step works on a fresh directory, and what is not done is
//! said.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

mod common;

#[path = "first_steps/beginning.rs"]
mod beginning;
#[path = "first_steps/shell.rs"]
mod shell;
#[path = "first_steps/walk.rs"]
mod walk;
