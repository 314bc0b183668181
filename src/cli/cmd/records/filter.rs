//! Which records a command is about.

use clap::Args;

use crate::domain::{SCORE_RULE, ScenarioName, is_score};
use crate::experience::RecordFilter;
use crate::sys::clock;

/// Options that choose records.
#[derive(Debug, Clone, Args)]
pub(super) struct FilterArgs {
    /// Only this scenario
    #[arg(short, long, value_name = "NAME")]
    pub(super) scenario: Option<ScenarioName>,
    /// Only reports with at least this score, and exchanges with such a report on them
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = score)]
    min_score: Option<f64>,
    /// Only reports with at most this score, and exchanges with such a report on them
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = score)]
    max_score: Option<f64>,
    /// Only records with this tag, whatever its value or with this one; several must all be there
    #[arg(long = "tag", value_name = "NAME[=VALUE]", value_parser = tag)]
    tags: Vec<(String, Option<String>)>,
    /// Only records from this time on: 2h (ago), 7d, 2026-11-30, 2026-11-30T06:22:15Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<i64>,
    /// Only records before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<i64>,
    /// Only records whose request, answer or feedback holds this text, in any case; several must all be there
    #[arg(short, long, value_name = "TEXT")]
    grep: Vec<String>,
}

impl FilterArgs {
    pub(super) fn filter(&self) -> RecordFilter {
        RecordFilter {
            min_score: self.min_score,
            max_score: self.max_score,
            tags: self.tags.clone(),
            since_us: self.since,
            until_us: self.until,
            texts: self.grep.clone(),
        }
    }

    /// Whether anything but the scenario is asked for.
    pub(super) fn is_given(&self) -> bool {
        self.filter() != RecordFilter::default()
    }
}

fn score(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if is_score(number) => Ok(number),
        _ => Err(format!("{SCORE_RULE}, such as 1, 0.5 or -2")),
    }
}

#[allow(clippy::unnecessary_wraps, reason = "clap asks for a result")]
fn tag(text: &str) -> Result<(String, Option<String>), String> {
    Ok(match text.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (text.to_owned(), None),
    })
}

fn moment(text: &str) -> Result<i64, String> {
    clock::moment_of(text, clock::now_us())
        .ok_or_else(|| "a time is needed, such as 2h (ago), 7d, 2026-11-30 or 2026-11-30T06:22:15Z".to_owned())
}
