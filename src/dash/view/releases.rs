//! The chain as a graph: what was released on the line, what was not beside it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::list::{self, Column, left, right};
use crate::dash::app::{App, Screen};
use crate::dash::page::{mark, wrap};
use crate::dash::rows;
use crate::dash::snapshot::StepFacts;
use crate::dash::text;

const COLUMNS: &[Column] = &[
    left("", 4, 0),
    right("step", 5, 0),
    left("release", 12, 0),
    left("when UTC", 14, 66),
    left("operation", 9, 0),
    left("kind", 13, 84),
    right("size", 9, 84),
    left("state", 11, 0),
    left("", 0, 58),
];

fn split(body: Rect) -> [Rect; 2] {
    let below = if body.height >= 24 { 11 } else { body.height / 3 };
    Layout::vertical([Constraint::Fill(1), Constraint::Length(below)]).areas(body)
}

pub(super) fn list(app: &App, body: Rect) -> Rect {
    let [top, _] = split(body);
    let [above, _] = list::with_note(top, app.newest().steps);
    list::lines(above, 1)
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, body: Rect) {
    let [top, below] = split(body);
    let area = list(app, body);
    let shown = rows::steps(app, Screen::Releases);
    let [_, note] = list::with_note(top, app.newest().steps);
    list::newest(frame, app, note, app.steps(), shown.len(), "reef release log");
    let head = app.focused().and_then(|facts| facts.release.clone());
    list::draw(frame, app.theme, area, COLUMNS, shown.len(), app.cursor(), |at| {
        cells(app, shown[at], head.as_deref())
    });
    if shown.is_empty() {
        let words = "this scenario has no release yet";
        list::empty(frame, app.theme, area, !app.filter().is_empty(), words);
    }
    if let Some(step) = shown.get(app.cursor()) {
        detail(frame, app, step, below);
    }
}

/// What a step's release is now, in a word.
fn state(step: &StepFacts, head: Option<&str>) -> &'static str {
    match step.became() {
        "released" if head == Some(step.release.as_str()) => "served",
        "released" if !step.restorable => "absent",
        "released" => "released",
        "promoted" => "promoted",
        "refused" => "refused",
        "held" => "held",
        "rejected" => "rejected",
        "skipped" => "skipped",
        _ => "-",
    }
}

fn cells(app: &App, step: &StepFacts, head: Option<&str>) -> Vec<list::Cell> {
    let (theme, plain) = (app.theme, Style::new());
    let state = state(step, head);
    let made = step.made_release();
    let (node, style) = match state {
        "served" => ("●", theme.good()),
        "released" => ("○", theme.good()),
        "absent" => ("◌", theme.faint()),
        "held" => ("├─ ?", theme.warn()),
        "promoted" => ("├─ ✓", theme.good()),
        "refused" | "rejected" => ("├─ ✗", theme.bad()),
        _ => ("├─ ~", theme.faint()),
    };
    let remark = match (&step.target, step.operation.as_str()) {
        (Some(target), "rollback") if made => format!("back to {}", text::short(target)),
        (Some(target), "promote") if made => format!("of {}", text::short(target)),
        _ => text::clean(step.reason.as_deref().or(step.note.as_deref()).unwrap_or_default()),
    };
    let only = |text: String| if made { text } else { String::new() };
    let when = if step.at_us > 0 {
        text::moment(step.at_us)
    } else {
        String::new()
    };
    vec![
        (node.to_owned(), style),
        (step.step.to_string(), plain),
        (
            only(text::short(&step.release)),
            if state == "served" { theme.strong() } else { plain },
        ),
        (when, theme.faint()),
        (step.operation.clone(), plain),
        (only(step.kind.clone()), plain),
        (only(text::bytes(step.bytes)), plain),
        (state.to_owned(), style),
        (remark, plain),
    ]
}

fn detail(frame: &mut Frame<'_>, app: &App, step: &StepFacts, area: Rect) {
    let theme = app.theme;
    let block = Block::new().borders(Borders::TOP).border_style(theme.faint());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let room = usize::from(inner.width.saturating_sub(13)).max(10);
    let mut lines = Vec::new();
    let mut pair = |name: &str, value: &str| {
        for (at, piece) in wrap(&text::clean(value), room).into_iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            lines.push(Line::from(vec![
                Span::styled(format!(" {name:<11}"), theme.faint()),
                Span::raw(piece),
            ]));
        }
    };
    if step.made_release() {
        pair("release", &step.release);
    } else {
        pair("kept", &step.release);
    }
    let mut told = |name: &str, value: &Option<String>| {
        if let Some(value) = value {
            pair(name, value);
        }
    };
    told("verdict", &step.reason);
    told("note", &step.note);
    told("asked for", &step.asked);
    told("batch", &step.batch);
    told("before it", &step.parent);
    let figures: Vec<String> = step
        .metrics
        .iter()
        .map(|(name, value)| format!("{name} {}", text::figure(*value)))
        .collect();
    if !figures.is_empty() {
        pair("figures", &figures.join(", "));
    }
    if step.waits() {
        lines.insert(
            0,
            Line::styled(
                format!(" {} waits for a decision: P promotes it, X rejects it", mark("held")),
                theme.warn(),
            ),
        );
    }
    frame.render_widget(Paragraph::new(lines), inner);
}
