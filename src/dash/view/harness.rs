//! What an agent gets from the served release: its files, what was asked for, what waits for a decision.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph};

use super::list::{self, Column, left, right};
use crate::dash::app::App;
use crate::dash::page::mark;
use crate::dash::rows;
use crate::dash::text;

const COLUMNS: &[Column] = &[left("file of the served release", 0, 0), right("size", 10, 0)];

fn split(body: Rect) -> [Rect; 2] {
    if body.width >= 90 {
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(body.width * 9 / 20)]).areas(body)
    } else {
        Layout::vertical([Constraint::Fill(1), Constraint::Length(body.height / 2)]).areas(body)
    }
}

pub(super) fn list(body: Rect) -> Rect {
    let [files, _] = split(body);
    list::lines(files, 1)
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, body: Rect) {
    let [_, beside] = split(body);
    let area = list(body);
    let shown = rows::files(app);
    list::draw(frame, app.theme, area, COLUMNS, shown.len(), app.cursor(), |at| {
        vec![
            (text::clean(&shown[at].path), Style::new()),
            (text::bytes(shown[at].bytes), app.theme.faint()),
        ]
    });
    if shown.is_empty() {
        let words = "the served release has no files";
        list::empty(frame, app.theme, area, !app.filter().is_empty(), words);
    }
    changes(frame, app, beside);
}

fn changes(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let theme = app.theme;
    let borders = if area.width < frame.area().width {
        Borders::LEFT
    } else {
        Borders::TOP
    };
    let block = Block::new().borders(borders).border_style(theme.faint());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let Some(focus) = app.snapshot.as_ref().and_then(|snapshot| snapshot.focus.as_ref()) else {
        return;
    };
    let width = usize::from(inner.width);
    let line = |words: String, style: Style| Line::styled(list::fit(&format!(" {words}"), width, false), style);
    let mut lines = vec![line("waiting for a decision".to_owned(), theme.strong())];
    let before = lines.len();
    for step in focus.steps.iter().filter(|step| step.waits()) {
        let why = step.reason.as_deref().unwrap_or(&step.kind);
        lines.push(line(
            format!(
                "{} step {} {}  {}",
                mark("held"),
                step.step,
                text::short(&step.release),
                text::clean(why)
            ),
            theme.warn(),
        ));
    }
    if lines.len() == before {
        lines.push(line("nothing".to_owned(), theme.faint()));
    }
    let open = app.focused().map_or(0, |facts| facts.instructions);
    lines.push(Line::default());
    lines.push(line(format!("requests ({open} not followed yet)"), theme.strong()));
    let before = lines.len();
    for row in focus.records.iter().filter(|row| row.kind == "train") {
        let step = focus
            .steps
            .iter()
            .find(|step| step.asked_by.as_deref() == Some(row.id.as_str()));
        let (became, style) = step.map_or(("waits".to_owned(), theme.warn()), |step| {
            (
                format!("{} step {} {}", mark(&step.outcome), step.step, step.outcome),
                theme.good(),
            )
        });
        lines.push(line(
            format!("{} {}  {became}", text::clock(row.at_us), text::short_record(&row.id)),
            style,
        ));
    }
    if lines.len() == before {
        lines.push(line(
            "none; reef instruct asks for a step in words".to_owned(),
            theme.faint(),
        ));
    }
    lines.push(Line::default());
    lines.push(line("changes and what led to them".to_owned(), theme.strong()));
    for step in focus
        .steps
        .iter()
        .filter(|step| step.batch.is_some() || step.asked.is_some())
        .take(20)
    {
        let style = match step.outcome.as_str() {
            "released" => theme.good(),
            "rejected" => theme.bad(),
            _ => theme.warn(),
        };
        lines.push(line(
            format!(
                "{} step {} {} {}",
                mark(&step.outcome),
                step.step,
                step.outcome,
                text::clean(step.reason.as_deref().unwrap_or_default())
            ),
            style,
        ));
        if let Some(asked) = &step.asked {
            lines.push(line(format!("    asked: {}", text::clean(asked)), Style::new()));
        }
    }
    frame.render_widget(Paragraph::new(lines), inner);
}
