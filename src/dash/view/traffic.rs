//! Records as they come.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::list::{self, Column, left, right};
use crate::dash::app::App;
use crate::dash::rows;
use crate::dash::snapshot::RecordFacts;
use crate::dash::text;

const COLUMNS: &[Column] = &[
    left("time UTC", 8, 50),
    left("kind", 7, 0),
    left("record", 12, 0),
    right("status", 6, 90),
    left("text", 0, 0),
    left("model", 18, 130),
    right("in", 6, 110),
    right("out", 6, 100),
    right("took", 8, 80),
    right("tok/s", 6, 140),
    left("release", 12, 150),
    right("score", 7, 60),
    left("", 3, 96),
];

pub(super) fn list(app: &App, body: Rect) -> Rect {
    let [above, _] = list::with_note(body, app.newest().records);
    list::lines(above, 1)
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, body: Rect) {
    let area = list(app, body);
    let shown = rows::records(app);
    let [_, note] = list::with_note(body, app.newest().records);
    list::newest(
        frame,
        app,
        note,
        app.records(),
        shown.len(),
        "go down, or reef records list",
    );
    list::draw(frame, app.theme, area, COLUMNS, shown.len(), app.cursor(), |at| {
        cells(app, shown[at])
    });
    if shown.is_empty() {
        let words = "no record in this scenario yet; they appear as requests finish";
        list::empty(frame, app.theme, area, !app.filter().is_empty(), words);
    }
}

fn cells(app: &App, row: &RecordFacts) -> Vec<list::Cell> {
    let (theme, plain) = (app.theme, Style::new());
    let number = |value: Option<u64>| value.map_or(String::new(), text::count);
    let (kind, kind_style) = match row.kind.as_str() {
        "inference" => ("answer", plain),
        "report" => ("report", theme.second()),
        "train" => ("asks", theme.warn()),
        other => (other, plain),
    };
    let failed = row.status.is_some_and(|status| status >= 400);
    // What a report is about goes before what it says.
    let subject = match row.kind.as_str() {
        "report" => {
            let first = row
                .references
                .first()
                .map_or("nothing".to_owned(), |id| text::short_record(id));
            let more = row.references.len().saturating_sub(1);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let says = if row.text.is_empty() {
                String::new()
            } else {
                format!(": {}", row.text)
            };
            format!("on {first}{more}{says}")
        }
        _ => row.text.clone(),
    };
    let per_second = match (row.output_tokens, row.total_us) {
        (Some(tokens), Some(us)) if us > 0 && tokens > 0 => text::figure_short(tokens as f64 / (us as f64 / 1e6)),
        _ => String::new(),
    };
    let flags = format!(
        "{}{}{}",
        if row.streamed { "s" } else { " " },
        if row.captured { "t" } else { " " },
        if row.pruned { "~" } else { " " }
    );
    vec![
        (text::clock(row.at_us), theme.faint()),
        (kind.to_owned(), kind_style),
        (text::short_record(&row.id), plain),
        (
            row.status.map_or(String::new(), |status| {
                if failed {
                    format!("!{status}")
                } else {
                    status.to_string()
                }
            }),
            if failed { theme.bad() } else { plain },
        ),
        (subject, plain),
        (text::clean(row.model.as_deref().unwrap_or_default()), theme.faint()),
        (number(row.input_tokens), plain),
        (number(row.output_tokens), plain),
        (
            row.total_us.filter(|us| *us > 0).map_or(String::new(), text::took),
            plain,
        ),
        (per_second, theme.faint()),
        (row.release.as_deref().map_or(String::new(), text::short), plain),
        (row.score.map_or(String::new(), text::figure), theme.good()),
        (flags, theme.faint()),
    ]
}
