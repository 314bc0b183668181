//! The only place that writes to standard output and standard error.

use std::io::{self, Write};

/// Writes data to standard output. A closed pipe ends the writing quietly: `reef … | head` is not an error.
pub(crate) fn data(text: &str) -> io::Result<()> {
    ignore_broken_pipe(io::stdout().lock().write_all(text.as_bytes()))
}

/// Writes one line of talk to standard error.
pub(crate) fn talk(line: &str) {
    // Nowhere is left to report that standard error is gone.
    let _gone = writeln!(io::stderr().lock(), "{line}");
}

fn ignore_broken_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
