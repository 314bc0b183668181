//! Figures of the steps, what was left out and why, and the steps in time.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::charts;
use super::list::{self, Column, left, right};
use crate::dash::app::{App, Screen};
use crate::dash::page::mark;
use crate::dash::rows;
use crate::dash::snapshot::{JobFacts, StepFacts};
use crate::dash::text;
use crate::dash::theme::Theme;

const COLUMNS: &[Column] = &[
    right("step", 5, 0),
    left("ended", 14, 58),
    left("outcome", 11, 0),
    right("samples", 7, 46),
    right("reward", 7, 0),
    right("loss", 8, 64),
    right("sealed to end", 13, 84),
    left("why", 0, 40),
];

fn split(app: &App, body: Rect) -> [Rect; 3] {
    let below = if app.zoom.maximised {
        6
    } else {
        (body.height * 2 / 5).max(6)
    };
    let [top, bottom] = Layout::vertical([Constraint::Fill(1), Constraint::Length(below)]).areas(body);
    let drops = if body.width >= 100 { 34 } else { 0 };
    let [steps, drops] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(drops)]).areas(bottom);
    [top, steps, drops]
}

pub(super) fn list(app: &App, body: Rect) -> Rect {
    let [_, steps, _] = split(app, body);
    let [above, _] = list::with_note(steps, app.newest().steps);
    list::lines(above, 2)
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, body: Rect) {
    let [top, steps, drops] = split(app, body);
    charts::draw(frame, app, top);
    let area = list(app, body);
    frame.render_widget(now(app, usize::from(steps.width)), Rect { height: 1, ..steps });
    let shown = rows::steps(app, Screen::Training);
    let [_, note] = list::with_note(steps, app.newest().steps);
    list::newest(frame, app, note, app.steps(), shown.len(), "reef release log");
    let jobs = app
        .snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.focus.as_ref())
        .map(|focus| focus.jobs.as_slice())
        .unwrap_or_default();
    list::draw(frame, app.theme, area, COLUMNS, shown.len(), app.cursor(), |at| {
        cells(app, shown[at], jobs)
    });
    if shown.is_empty() {
        let words = "no step yet; a recipe that learns makes them from reports";
        list::empty(frame, app.theme, area, !app.filter().is_empty(), words);
    }
    if drops.width > 0 {
        left_out(frame, app, drops);
    }
}

/// What the loop is doing at this moment.
fn now(app: &App, width: usize) -> Line<'static> {
    let theme = app.theme;
    let Some(facts) = app.focused() else {
        return Line::default();
    };
    let left_out: u64 = facts.excluded.values().sum();
    let phase = if facts.phase.is_empty() {
        "not driven here"
    } else {
        &facts.phase
    };
    let mut words = format!(" loop: {phase}");
    if let Some(share) = facts.progress {
        let full = (share.clamp(0.0, 1.0) * 20.0).round() as usize;
        words.push_str(&format!(
            " [{}{}] {:.0}%",
            "█".repeat(full),
            "·".repeat(20 - full),
            share * 100.0
        ));
    }
    if let Some(pending) = facts.pending {
        words.push_str(&format!("  {} waiting", text::count(pending)));
    }
    words.push_str(&format!("  {} left out", text::count(left_out)));
    match &facts.trouble {
        Some(trouble) => Line::styled(
            list::fit(&format!("{words}  ! {}", text::clean(trouble)), width, false),
            theme.warn(),
        ),
        None => Line::styled(list::fit(&words, width, false), theme.faint()),
    }
}

fn cells(app: &App, step: &StepFacts, jobs: &[JobFacts]) -> Vec<list::Cell> {
    let (theme, plain) = (app.theme, Style::new());
    let outcome = step.became();
    let figure = |key: &str| step.metrics.get(key).copied().map_or(String::new(), text::figure);
    let took = jobs
        .iter()
        .filter(|job| step.batch.is_some() && job.step == step.step)
        .find_map(|job| Some(job.ended_us? - job.sealed_us))
        .map_or(String::new(), |us| text::took(u64::try_from(us).unwrap_or(0)));
    let why = step.reason.clone().unwrap_or_else(|| step.operation.clone());
    vec![
        (step.step.to_string(), plain),
        (text::moment(step.at_us), theme.faint()),
        (format!("{} {outcome}", mark(outcome)), ended(theme, outcome)),
        (
            step.metrics
                .get("samples")
                .map_or(String::new(), |count| format!("{count:.0}")),
            plain,
        ),
        (figure("reward_mean"), plain),
        (figure("loss"), plain),
        (took, theme.faint()),
        (text::clean(&why), plain),
    ]
}

/// The style that goes with how a step ended.
pub(super) fn ended(theme: Theme, outcome: &str) -> Style {
    match outcome {
        "released" | "promoted" => theme.good(),
        "rejected" | "refused" => theme.bad(),
        "-" => theme.faint(),
        _ => theme.warn(),
    }
}

/// Why records did not train, the most frequent reason first.
fn left_out(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let theme = app.theme;
    let block = Block::new().borders(Borders::LEFT).border_style(theme.faint());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let mut reasons: Vec<(&String, u64)> = app
        .focused()
        .map(|facts| facts.excluded.iter().map(|(reason, count)| (reason, *count)).collect())
        .unwrap_or_default();
    reasons.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let most = reasons.first().map_or(1, |(_, count)| *count).max(1);
    let mut lines = vec![Line::styled(" left out of training, by reason", theme.faint())];
    if reasons.is_empty() {
        lines.push(Line::styled(" nothing", theme.faint()));
    }
    for (reason, count) in reasons {
        let bar = "▪".repeat((count * 6).div_ceil(most) as usize);
        lines.push(Line::from(vec![
            Span::raw(format!(
                " {} {:>5} ",
                list::fit(&text::clean(reason), 18, false),
                text::count(count)
            )),
            Span::styled(bar, theme.second()),
        ]));
    }
    frame.render_widget(Paragraph::new(lines), inner);
}
