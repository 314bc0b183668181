//! Lists with columns that fit the width: the less important ones go first.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::dash::app::App;
use crate::dash::cursor::first_shown;
use crate::dash::page::wrap;
use crate::dash::theme::Theme;

/// A column.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Columns it takes; the one with 0 takes what is left.
    pub(super) width: u16,
    pub(super) right: bool,
    /// Shown from this total width on.
    pub(super) from: u16,
}

/// A column aligned to the left.
pub(super) const fn left(title: &'static str, width: u16, from: u16) -> Column {
    Column {
        title,
        width,
        right: false,
        from,
    }
}

/// A column aligned to the right.
pub(super) const fn right(title: &'static str, width: u16, from: u16) -> Column {
    Column {
        title,
        width,
        right: true,
        from,
    }
}

/// A cell.
pub(super) type Cell = (String, Style);

/// The lines of a list that has so many rows above them, its heading among these.
pub(super) fn lines(area: Rect, above: u16) -> Rect {
    Rect {
        y: area.y + above.min(area.height),
        height: area.height.saturating_sub(above),
        ..area
    }
}

/// Which line is selected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Selected {
    pub(super) at: usize,
    /// Whether keys go to this list.
    pub(super) focused: bool,
}

impl From<usize> for Selected {
    fn from(at: usize) -> Self {
        Self { at, focused: true }
    }
}

/// Draws the heading on the row above `area` and the lines in it, as far as they are in view.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    theme: Theme,
    area: Rect,
    columns: &[Column],
    len: usize,
    selected: impl Into<Selected>,
    cells: impl Fn(usize) -> Vec<Cell>,
) {
    let Selected { at: selected, focused } = selected.into();
    let width = area.width;
    let shown: Vec<usize> = (0..columns.len()).filter(|at| width >= columns[*at].from).collect();
    let fixed: u16 = shown.iter().map(|at| columns[*at].width + 1).sum();
    let rest = width.saturating_sub(fixed + 1);
    let wide = |at: usize| {
        usize::from(if columns[at].width == 0 {
            rest
        } else {
            columns[at].width
        })
    };
    let mut heading = String::from(" ");
    for at in &shown {
        heading.push_str(&fit(columns[*at].title, wide(*at), columns[*at].right));
        heading.push(' ');
    }
    let head = Rect::new(area.x, area.y.saturating_sub(1), width, 1);
    frame.render_widget(Line::styled(heading, theme.faint()), head);
    let height = usize::from(area.height);
    let first = first_shown(len, selected, height);
    for (row, at) in (first..len.min(first + height)).enumerate() {
        let cells = cells(at);
        let chosen = focused && at == selected;
        let mut spans = vec![Span::raw(if chosen { "▌" } else { " " })];
        for column in &shown {
            let (text, style) = cells.get(*column).cloned().unwrap_or_default();
            spans.push(Span::styled(fit(&text, wide(*column), columns[*column].right), style));
            spans.push(Span::raw(" "));
        }
        let mut line = Line::from(spans);
        if chosen {
            line = line.style(theme.selected());
        }
        let place = Rect::new(area.x, area.y + u16::try_from(row).unwrap_or(0), width, 1);
        frame.render_widget(line, place);
    }
}

/// Exactly `width` columns of a text; what does not fit ends in `…`.
pub(super) fn fit(text: &str, width: usize, right: bool) -> String {
    let has = text.width();
    if has <= width {
        let pad = " ".repeat(width - has);
        return if right {
            format!("{pad}{text}")
        } else {
            format!("{text}{pad}")
        };
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let columns = c.width().unwrap_or(0);
        if used + columns + 1 > width {
            break;
        }
        out.push(c);
        used += columns;
    }
    if width > 0 {
        out.push('…');
        used += 1;
    }
    out.push_str(&" ".repeat(width.saturating_sub(used)));
    out
}

/// Bars of eighths, newest at the right; as many as fit. They span the range of the values.
pub(super) fn spark(values: &[f64], width: usize) -> String {
    let values = &values[values.len().saturating_sub(width)..];
    bars(values, values.iter().copied().fold(f64::INFINITY, f64::min))
}

/// The same for rates: the lowest bar is nothing at all.
pub(super) fn spark_rate(values: &[f64], width: usize) -> String {
    bars(&values[values.len().saturating_sub(width)..], 0.0)
}

fn bars(values: &[f64], low: f64) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values
        .iter()
        .map(|value| {
            let share = match (high > low, low > 0.0 || high != 0.0) {
                (true, _) => (value - low) / (high - low),
                (false, true) => 0.5,
                (false, false) => 0.0,
            };
            BARS[((share * 7.0).round().clamp(0.0, 7.0)) as usize]
        })
        .collect()
}

/// The area of a list that may end before all there is, and of the row that says so.
pub(super) fn with_note(area: Rect, noted: bool) -> [Rect; 2] {
    let row = u16::from(noted && area.height > 3);
    Layout::vertical([Constraint::Fill(1), Constraint::Length(row)]).areas(area)
}

/// Says that these are the newest, and where the others are.
pub(super) fn newest(frame: &mut Frame<'_>, app: &App, note: Rect, all: usize, shown: usize, others: &str) {
    let filtered = if app.filter().is_empty() {
        String::new()
    } else {
        format!("{shown} of ")
    };
    let words = format!(" {filtered}the newest {all}; for older ones: {others}");
    frame.render_widget(Line::styled(words, app.theme.faint()), note);
}

/// What a list says when it is empty.
pub(super) fn empty(frame: &mut Frame<'_>, theme: Theme, area: Rect, filtered: bool, otherwise: &str) {
    let words = if filtered {
        "nothing matches the filter; Esc clears it"
    } else {
        otherwise
    };
    let pieces = wrap(words, usize::from(area.width.saturating_sub(3)).max(10));
    let lines = pieces
        .into_iter()
        .map(|piece| Line::styled(format!("  {piece}"), theme.faint()));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_takes_exactly_its_width() {
        for text in ["", "ab", "abcdefgh", "世界世界世界", "é́x"] {
            for width in 0..9 {
                assert_eq!(fit(text, width, false).width(), width, "{text:?} in {width}");
            }
        }
        assert_eq!(fit("abcdef", 4, false), "abc…");
        assert_eq!(fit("7", 3, true), "  7");
    }

    #[test]
    fn a_sparkline_spans_its_own_range() {
        assert_eq!(spark(&[0.0, 0.5, 1.0], 10), "▁▅█");
        assert_eq!(spark(&[3.0, 3.0], 10), "▅▅");
        assert_eq!(spark(&[1.0, 2.0, 3.0], 2), "▁█");
        assert_eq!(spark_rate(&[2.0, 2.0, 0.0], 5), "██▁");
        assert_eq!(spark_rate(&[0.0, 0.0], 5), "▁▁");
    }
}
