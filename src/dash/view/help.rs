//! Every key.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::list::{self, Column, left};
use crate::dash::app::App;
use crate::dash::keys::{BINDINGS, Place};

const COLUMNS: &[Column] = &[left("key", 16, 0), left("where", 11, 66), left("what", 0, 0)];

pub(super) fn list(body: Rect) -> Rect {
    list::lines(body, 1)
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, body: Rect) {
    list::draw(
        frame,
        app.theme,
        list(body),
        COLUMNS,
        BINDINGS.len(),
        app.cursor(),
        |at| {
            let binding = &BINDINGS[at];
            let place = match binding.place {
                Place::Everywhere => "everywhere",
                Place::On(screen) => screen.name(),
            };
            vec![
                (binding.shown.to_owned(), app.theme.strong()),
                (place.to_owned(), app.theme.faint()),
                (binding.what.to_owned(), Style::new()),
            ]
        },
    );
}
