//! The lines of each screen's list, after the filter.

use super::app::{App, Screen};
use super::snapshot::{FileFacts, RecordFacts, ScenarioFacts, StepFacts};
use super::text;
use crate::telemetry::LogLine;

/// Whether a text holds every word of a filter, without regard to case.
pub(super) fn matches(filter: &str, text: &str) -> bool {
    let text = text.to_lowercase();
    filter
        .split_whitespace()
        .all(|word| text.contains(&word.to_lowercase()))
}

fn filter(app: &App, screen: Screen) -> &str {
    &app.filters[screen.place()]
}

pub(super) fn scenarios(app: &App) -> Vec<&ScenarioFacts> {
    let filter = filter(app, Screen::Overview);
    let all = app.snapshot.as_ref().map(|snapshot| snapshot.scenarios.as_slice());
    all.unwrap_or_default()
        .iter()
        .filter(|facts| {
            matches(
                filter,
                &format!(
                    "{} {} {} {}",
                    facts.name,
                    facts.mode,
                    facts.phase,
                    facts.release.as_deref().unwrap_or_default()
                ),
            )
        })
        .collect()
}

pub(super) fn records(app: &App) -> Vec<&RecordFacts> {
    let filter = filter(app, Screen::Traffic);
    let focus = app.snapshot.as_ref().and_then(|snapshot| snapshot.focus.as_ref());
    focus
        .map(|focus| focus.records.as_slice())
        .unwrap_or_default()
        .iter()
        .filter(|row| {
            filter.is_empty()
                || matches(
                    filter,
                    &format!(
                        "{} {} {} {} {} {} {} {} {}",
                        row.id,
                        row.kind,
                        row.status.unwrap_or(0),
                        row.route.as_deref().unwrap_or_default(),
                        row.model.as_deref().unwrap_or_default(),
                        row.release.as_deref().unwrap_or_default(),
                        row.tags.join(" "),
                        row.references.join(" "),
                        row.text,
                    ),
                )
        })
        .collect()
}

pub(super) fn steps(app: &App, screen: Screen) -> Vec<&StepFacts> {
    if !matches!(screen, Screen::Training | Screen::Releases) {
        return Vec::new();
    }
    let filter = filter(app, screen);
    let focus = app.snapshot.as_ref().and_then(|snapshot| snapshot.focus.as_ref());
    focus
        .map(|focus| focus.steps.as_slice())
        .unwrap_or_default()
        .iter()
        .filter(|step| {
            filter.is_empty()
                || matches(
                    filter,
                    &format!(
                        "{} {} {} {} {} {} {}",
                        step.step,
                        step.release,
                        step.operation,
                        step.became(),
                        step.kind,
                        step.reason.as_deref().unwrap_or_default(),
                        step.note.as_deref().unwrap_or_default(),
                    ),
                )
        })
        .collect()
}

pub(super) fn files(app: &App) -> Vec<&FileFacts> {
    let filter = filter(app, Screen::Harness);
    let focus = app.snapshot.as_ref().and_then(|snapshot| snapshot.focus.as_ref());
    let all = focus.map(|focus| focus.files.as_slice()).unwrap_or_default();
    all.iter().filter(|file| matches(filter, &file.path)).collect()
}

/// Newest first, as severe as wanted.
pub(super) fn logs(app: &App) -> Vec<&LogLine> {
    let filter = filter(app, Screen::Logs);
    app.logs
        .iter()
        .rev()
        .filter(|line| line.severity() <= app.severity)
        .filter(|line| {
            filter.is_empty() || matches(filter, &format!("{} {} {}", line.target, line.message, line.details()))
        })
        .collect()
}

/// What each line of a screen's list is, for the cursor to find it again.
pub(super) fn keys(app: &App, screen: Screen) -> Vec<String> {
    match screen {
        Screen::Overview => scenarios(app).iter().map(|facts| facts.name.clone()).collect(),
        Screen::Traffic => records(app).iter().map(|row| row.sequence.to_string()).collect(),
        Screen::Training | Screen::Releases => steps(app, screen).iter().map(|step| step.step.to_string()).collect(),
        Screen::Harness => files(app).iter().map(|file| file.path.clone()).collect(),
        Screen::Logs => logs(app)
            .iter()
            .map(|line| format!("{} {}", text::clock(line.at_us), line.message))
            .collect(),
        Screen::Help => super::keys::BINDINGS
            .iter()
            .map(|binding| binding.shown.to_owned())
            .collect(),
    }
}
