//! What is logged, for the two kinds of run: a command, which should be quiet, and the service, whose log is read later.

use crate::config::{self, Settings};
use crate::telemetry::{LogFormat, init_logging};

use super::Context;

/// Logging of a command: warnings, or what `-v` or `REEF_LOG` ask for.
pub(crate) fn for_command(context: &Context) {
    start(context, "warn", LogFormat::Text);
}

/// Logging of the service, as configured.
pub(crate) fn for_service(context: &Context, settings: &Settings) {
    let format = match settings.observability.log_format {
        config::LogFormat::Text => LogFormat::Text,
        config::LogFormat::Json => LogFormat::Json,
    };
    start(context, &settings.observability.log, format);
}

fn start(context: &Context, usual: &str, format: LogFormat) {
    let output = context.output();
    let filter = match (output.quiet(), output.verbosity()) {
        (true, _) => "error",
        (false, 0) => context.env("REEF_LOG").unwrap_or(usual),
        (false, 1) => "info,reef=debug",
        (false, _) => "debug,reef=trace",
    };
    let format = if output.json() { LogFormat::Json } else { format };
    init_logging(filter, format, output.colored_talk());
}
