//! The end of the process.

use std::io::{self, Write};

/// Ends the process with this status, without running the destructors of the libraries in it: those of libtorch take a
/// tenth of a second, after everything a person or a script waits for is done. What Reef writes is complete when it is
/// written; only standard output may still hold a line.
pub fn leave(status: u8) -> ! {
    // Nobody is left to be told that standard output is gone.
    let _gone = io::stdout().flush();
    at_once(status)
}

/// The same without a last word: nothing that another thread holds is waited for.
#[allow(unsafe_code, reason = "_exit has no safe form")]
pub fn at_once(status: u8) -> ! {
    // SAFETY: _exit has no precondition; it returns to nobody.
    unsafe { libc::_exit(i32::from(status)) }
}
