//! Law: the command line. One file per command in `cmd/`; this room prints, chooses exit codes and shows progress, and
//! holds no domain logic. Door: [`main`]. Data goes to standard output, talk to standard error.

mod exit;
mod output;

pub use exit::{EXIT_CODES, Exit};

use std::process::ExitCode;

/// Runs the program.
pub fn main() -> ExitCode {
    crate::sys::failpoint::arm_from_env();
    ExitCode::from(Exit::Ok.code())
}
