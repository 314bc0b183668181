//! Where log lines go: standard error, as text or as JSON lines.

use std::io;

use tracing_subscriber::EnvFilter;

use super::Context;

/// Starts logging. `REEF_LOG` has the last word (`REEF_LOG=reef::serve=trace`).
pub(crate) fn init(context: &Context) {
    let output = context.output();
    let level = match (output.quiet(), output.verbosity()) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "warn,reef=debug",
        (false, _) => "debug,reef=trace",
    };
    let filter = context
        .env("REEF_LOG")
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    // A second initialisation is possible only inside a test process, where the first one serves.
    let _already = if output.json() {
        builder.json().try_init()
    } else {
        builder.with_ansi(output.colored_talk()).try_init()
    };
}
