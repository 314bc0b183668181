//! What is logged, for the kinds of run: a command, which should be quiet, and work whose log is read later: the service
//! and training.

use crate::config::{self, Settings};
use crate::telemetry::{LogFormat, Telemetry, Tracing, init};

use super::Context;

/// Logging of a command: warnings, or what `-v` or `REEF_LOG` ask for.
pub(crate) fn for_command(context: &Context) {
    // Nothing is traced, so nothing is left to send.
    let _untraced = start(context, quiet(context), LogFormat::Text, None);
}

/// Logging of the service, as configured. Traces that are left are sent when the guard goes.
pub(crate) fn for_service(context: &Context, settings: &Settings) -> Tracing {
    let format = match settings.observability.log_format {
        config::LogFormat::Text => LogFormat::Text,
        config::LogFormat::Json => LogFormat::Json,
    };
    start(context, &settings.observability.log, format, Some(settings))
}

/// Logging of training from the shell: quiet as a command, kept as the service's. The command tells of failed steps
/// itself.
pub(crate) fn for_training(context: &Context, settings: &Settings) -> Tracing {
    let usual = context
        .env("REEF_LOG")
        .unwrap_or("warn,reef::scenario::drive::perform=error");
    start(context, usual, LogFormat::Text, Some(settings))
}

/// What a person at a shell wants to see, unless the environment says otherwise.
fn quiet(context: &Context) -> &str {
    context.env("REEF_LOG").unwrap_or("warn")
}

fn start(context: &Context, usual: &str, format: LogFormat, kept: Option<&Settings>) -> Tracing {
    let output = context.output();
    let filter = match (output.quiet(), output.verbosity()) {
        (true, _) => "error",
        (false, 0) => usual,
        (false, 1) => "info,reef=debug",
        (false, _) => "debug,reef=trace",
    };
    if let Some(settings) = kept {
        // The log begins before anything else that is kept. Why it cannot, whoever opens the store says.
        let _told_later = context.claim_dir(settings);
    }
    let observability = kept.map(|settings| &settings.observability);
    let journal = kept
        .filter(|settings| settings.observability.log_files)
        .map(|settings| (settings.storage.log_dir(), settings.observability.log.clone()));
    init(&Telemetry {
        filter: filter.to_owned(),
        format: if output.json() { LogFormat::Json } else { format },
        color: output.colored_talk(),
        journal,
        otlp: observability.and_then(|observability| observability.otlp_endpoint.clone()),
        // A proxy that cannot be used is refused where the engine is built.
        proxies: kept.and_then(|settings| settings.proxies().ok()).unwrap_or_default(),
    })
}
