//! The log, newest first.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

use super::list::{self, Column, left};
use crate::dash::app::App;
use crate::dash::rows;
use crate::dash::text;
use crate::telemetry::LEVELS;

const COLUMNS: &[Column] = &[
    left("time UTC", 14, 70),
    left("level", 7, 0),
    left("from", 22, 90),
    left("message", 0, 0),
];

pub(super) fn list(body: Rect) -> Rect {
    // The last row says how many there are.
    let above = Rect {
        height: body.height.saturating_sub(1),
        ..body
    };
    list::lines(above, 1)
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, body: Rect) {
    let (theme, area) = (app.theme, list(body));
    let shown = rows::logs(app);
    list::draw(frame, theme, area, COLUMNS, shown.len(), app.cursor(), |at| {
        let line = shown[at];
        let (mark, style) = match line.severity() {
            0 => ("!", theme.bad()),
            1 => ("▲", theme.warn()),
            2 => ("·", Style::new()),
            _ => (" ", theme.faint()),
        };
        vec![
            (text::moment(line.at_us), theme.faint()),
            (format!("{mark} {}", line.level), style),
            (text::clean(&line.target), theme.faint()),
            (
                text::clean(&format!("{}  {}", line.message, line.details())),
                Style::new(),
            ),
        ]
    });
    match (&app.log_fault, shown.is_empty()) {
        (Some(fault), _) => list::empty(frame, theme, area, false, &text::clean(&fault.message)),
        (None, true) => list::empty(
            frame,
            theme,
            area,
            !app.filter().is_empty(),
            "no line of this severity; reef serve and reef train write them",
        ),
        (None, false) => {}
    }
    let least = LEVELS.get(app.severity).copied().unwrap_or("TRACE");
    let words = format!(" {} of {} lines, {least} and worse", shown.len(), app.logs.len());
    let last = Rect::new(body.x, body.bottom().saturating_sub(1), body.width, 1);
    frame.render_widget(Line::styled(words, theme.faint()), last);
}
