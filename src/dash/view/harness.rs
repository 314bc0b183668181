//! What an agent gets from the served release, and what changes it: the files of the tree; what waits for somebody, what
//! was tried and what led to it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph};

use super::list::{self, Column, Selected, left, right};
use crate::dash::app::{App, Screen};
use crate::dash::changes::{self, Change, Waiting};
use crate::dash::page::{Page, mark, style};
use crate::dash::rows;
use crate::dash::text;

const FILES: &[Column] = &[left("file of the served release", 0, 0), right("size", 10, 0)];

const CHANGES: &[Column] = &[
    left("what", 8, 0),
    left("state", 13, 0),
    left("by", 10, 70),
    left("change ← what led to it", 0, 0),
    left("began", 8, 90),
];

/// Rows above the lines of the changes: what waits, and the heading.
const ABOVE: u16 = 2;

/// The files and what changes them, without the rule between the two.
fn split(body: Rect) -> [Rect; 2] {
    let [files, beside]: [Rect; 2] = if body.width >= 90 {
        Layout::horizontal([Constraint::Length(body.width * 2 / 5), Constraint::Fill(1)]).areas(body)
    } else {
        Layout::vertical([Constraint::Length(body.height / 3), Constraint::Fill(1)]).areas(body)
    };
    [files, block(body).inner(beside)]
}

fn block(body: Rect) -> Block<'static> {
    Block::new().borders(if body.width >= 90 { Borders::LEFT } else { Borders::TOP })
}

/// The lines of the changes and, where there is room, what the selected one is about.
fn within(beside: Rect) -> [Rect; 2] {
    let below = if beside.height >= 24 { beside.height / 2 } else { 0 };
    Layout::vertical([Constraint::Fill(1), Constraint::Length(below)]).areas(beside)
}

/// The lines of the files or, `beside` them, of what changes them.
pub(super) fn list(body: Rect, beside: bool) -> Rect {
    let [files, changes] = split(body);
    if beside {
        list::lines(within(changes)[0], ABOVE)
    } else {
        list::lines(files, 1)
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, body: Rect) {
    let area = list(body, false);
    let shown = rows::files(app);
    let selected = Selected {
        at: app.cursors[Screen::Harness.place()].index(),
        focused: !app.beside(),
    };
    list::draw(frame, app.theme, area, FILES, shown.len(), selected, |at| {
        vec![
            (text::clean(&shown[at].path), Style::new()),
            (text::bytes(shown[at].bytes), app.theme.faint()),
        ]
    });
    if shown.is_empty() {
        let words = "the served release has no files";
        list::empty(frame, app.theme, area, !app.filter().is_empty(), words);
    }
    let [_, beside] = split(body);
    let around = if body.width >= 90 {
        Rect {
            x: beside.x.saturating_sub(1),
            width: beside.width + 1,
            ..beside
        }
    } else {
        Rect {
            y: beside.y.saturating_sub(1),
            height: beside.height + 1,
            ..beside
        }
    };
    frame.render_widget(block(body).border_style(app.theme.faint()), around.intersection(body));
    tried(frame, app, body, beside);
}

fn tried(frame: &mut Frame<'_>, app: &App, body: Rect, beside: Rect) {
    let theme = app.theme;
    let Some(focus) = app.snapshot.as_ref().and_then(|snapshot| snapshot.focus.as_ref()) else {
        return;
    };
    let (mut words, waits) = waiting(Waiting::of(focus));
    if focus.newest.attempts {
        words.push_str(&format!("; the newest {} attempts", focus.evolution.attempts.len()));
    }
    let top = Rect {
        height: 1.min(beside.height),
        ..beside
    };
    frame.render_widget(
        Line::styled(words, if waits { theme.warn() } else { theme.faint() }),
        top,
    );
    let area = list(body, true);
    let shown = changes::shown(app);
    let selected = Selected {
        at: app.changes.index(),
        focused: app.beside(),
    };
    list::draw(frame, theme, area, CHANGES, shown.len(), selected, |at| {
        let change = &shown[at];
        vec![
            (change.what().to_owned(), Style::new()),
            (
                format!("{} {}", mark(change.state()), text::clean(change.state())),
                style(theme, change.state()),
            ),
            (text::clean(&change.author()), theme.faint()),
            (text::clean(&change.summary()), Style::new()),
            (change.time(), theme.faint()),
        ]
    });
    if shown.is_empty() {
        let words = "nothing was tried yet; reef instruct asks for a step in words";
        list::empty(frame, theme, area, !app.filter().is_empty(), words);
    }
    let [_, below] = within(beside);
    if let Some(change) = shown.get(app.changes.index()) {
        about(frame, app, change, below);
    }
}

/// What waits for somebody, in a line, and whether anything does.
fn waiting(waiting: Waiting) -> (String, bool) {
    let counted = [
        (waiting.decisions, "decision"),
        (waiting.requests, "request"),
        (waiting.proposals, "proposal"),
    ];
    let parts: Vec<String> = counted
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }))
        .collect();
    if parts.is_empty() {
        return (" nothing waits".to_owned(), false);
    }
    (format!(" waiting: {}", parts.join(", ")), true)
}

/// The beginning of the page of the selected line.
fn about(frame: &mut Frame<'_>, app: &App, change: &Change<'_>, area: Rect) {
    let block = Block::new().borders(Borders::TOP).border_style(app.theme.faint());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    if inner.height == 0 {
        return;
    }
    let Some(body) = change.body() else {
        return;
    };
    let mut lines = Page::showing(String::new(), body).lines(inner.width.saturating_sub(2), app.theme);
    lines.truncate(usize::from(inner.height));
    let text = Rect {
        x: inner.x + 1,
        width: inner.width.saturating_sub(2),
        ..inner
    };
    frame.render_widget(Paragraph::new(lines), text);
}
