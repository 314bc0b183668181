//! Law: how the process speaks of itself: logs, metrics, traces. Owns the subscriber and the log files; never decides
//! anything. Door: [`init`], [`Telemetry`], [`LogFormat`], and [`read_tail`] for who reads the log back. State:
//! process-wide, and `logs/`. Never fails the work it observes.

mod journal;
mod lines;
mod otlp;

use std::path::PathBuf;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::sys::net::Proxies;

pub use journal::{JOURNAL, read_tail};
pub use lines::{LEVELS, LogLine, Tail};
pub use otlp::{TRACES, Tracing};

/// How log lines look on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Where and how a process speaks of itself.
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// What goes to standard error: a `tracing` directive such as `info` or `reef=debug`.
    pub filter: String,
    /// How that looks.
    pub format: LogFormat,
    /// Whether it has colours.
    pub color: bool,
    /// The directory that keeps structured lines for `reef logs`, and the directive for what goes there.
    pub journal: Option<(PathBuf, String)>,
    /// The OTLP/HTTP collector that traces go to.
    pub otlp: Option<String>,
    /// The proxies on the way there.
    pub proxies: Proxies,
}

/// Whether a directive says what is logged. A word that is neither a level nor a part of a program would log nothing.
pub fn check_filter(text: &str) -> Result<(), String> {
    EnvFilter::try_new(text).map_err(|error| format!("is no filter of log lines: {error}"))?;
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let level = ["error", "warn", "info", "debug", "trace", "off"]
            .iter()
            .any(|level| part.eq_ignore_ascii_case(level));
        if !level && !part.contains(['=', ':', '[']) && part != "reef" {
            return Err("holds a word that is no level".to_owned());
        }
    }
    Ok(())
}

/// Starts logging, and tracing where a collector is named. A second call does nothing. The returned guard sends what is
/// left of the traces when it goes.
pub fn init(telemetry: &Telemetry) -> Tracing {
    // Spans are for the collector; without one they cost nothing.
    let read = |text: &str| {
        let wanted = EnvFilter::try_new(format!("{text},{TRACES}=off"));
        wanted.unwrap_or_else(|_| EnvFilter::new(format!("info,{TRACES}=off")))
    };
    let filter = || read(&telemetry.filter);
    let base = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // A terminal that hung up, or a reader that went away, must not break what is logged about.
        .log_internal_errors(false)
        .with_target(false);
    let stderr = match telemetry.format {
        LogFormat::Text => base.with_ansi(telemetry.color).with_filter(filter()).boxed(),
        LogFormat::Json => base.json().flatten_event(true).with_filter(filter()).boxed(),
    };
    let mut faults = Vec::new();
    let journal = telemetry.journal.as_ref().and_then(|(dir, directive)| {
        let journal = journal::Journal::open(dir)
            .map_err(|error| faults.push(format!("no log files in {}: {error}", dir.display())))
            .ok()?;
        Some((journal, read(directive)))
    });
    let journal = journal.map(|(journal, filter)| {
        tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(journal)
            .log_internal_errors(false)
            .with_filter(filter)
    });
    let (traces, tracing) = match telemetry
        .otlp
        .as_deref()
        .map(|url| otlp::start(url, &telemetry.proxies))
    {
        None => (None, Tracing::default()),
        Some(Ok((layer, tracing))) => (Some(layer), tracing),
        Some(Err(fault)) => {
            faults.push(fault);
            (None, Tracing::default())
        }
    };
    // Only a second initialisation can fail, and then logging already works.
    let _already_set = tracing_subscriber::registry()
        .with(traces)
        .with(stderr)
        .with(journal)
        .try_init();
    for fault in faults {
        tracing::warn!("{fault}");
    }
    tracing
}
