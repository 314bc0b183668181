//! Law: how the process speaks of itself: logs, metrics, traces. Owns the subscriber and the metric registry; never
//! decides anything. Door: [`init_logging`], [`LogFormat`]. State: process-wide. Never fails the work it observes.

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging to standard error. `filter` is a `tracing` directive such as `info` or `reef=debug`. A second call
/// does nothing.
pub fn init_logging(filter: &str, format: LogFormat, color: bool) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let base = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    // Only a second initialisation can fail, and then logging already works.
    let _already_set = match format {
        LogFormat::Text => base.with_ansi(color).try_init(),
        LogFormat::Json => base.json().flatten_event(true).try_init(),
    };
}
