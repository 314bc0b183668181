//! Figures of steps as lines.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType};

use crate::dash::app::App;
use crate::dash::series::{FIGURES, series, widened};
use crate::dash::text;

/// How many there are.
pub(in crate::dash) const CHARTS: usize = FIGURES.len();

/// Draws as many charts as fit, beginning with the selected one.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let zoom = app.zoom;
    if zoom.maximised {
        one(frame, app, zoom.chart, area);
        return;
    }
    let columns = usize::from(area.width / 26).clamp(1, 3);
    let rows = usize::from(area.height / 7).clamp(1, CHARTS.div_ceil(columns));
    let lines = Layout::vertical(vec![Constraint::Fill(1); rows]).split(area);
    for (row, line) in lines.iter().enumerate() {
        let places = Layout::horizontal(vec![Constraint::Fill(1); columns]).split(*line);
        for (column, place) in places.iter().enumerate() {
            let at = row * columns + column;
            // All fit: they keep their places and the selected one is marked. Otherwise the selected one comes first.
            let chart = if rows * columns >= CHARTS {
                at
            } else {
                (zoom.chart + at) % CHARTS
            };
            if at < CHARTS {
                one(frame, app, chart, *place);
            }
        }
    }
}

fn one(frame: &mut Frame<'_>, app: &App, chart: usize, area: Rect) {
    let (theme, figure) = (app.theme, &FIGURES[chart]);
    let points = app
        .snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.focus.as_ref())
        .map(|focus| series(&focus.steps, figure, app.zoom.steps, app.zoom.back))
        .unwrap_or_default();
    let last = points.last().map_or("-".to_owned(), |(_, value)| text::figure(*value));
    let selected = chart == app.zoom.chart;
    let name = if selected {
        Span::styled(format!(" ▸ {} ", figure.name), theme.strong())
    } else {
        Span::styled(format!(" {} ", figure.name), theme.faint())
    };
    let block = Block::bordered()
        .border_style(theme.faint())
        .title(Line::from(vec![name, Span::styled(format!("{last} "), theme.line())]));
    if points.len() < 2 {
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let words = if points.is_empty() {
            "no step has this figure"
        } else {
            "one step so far"
        };
        frame.render_widget(Line::styled(format!(" {words}"), theme.faint()), inner);
        return;
    }
    let (low, high) = points
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (_, value)| {
            (low.min(*value), high.max(*value))
        });
    let (low, high) = widened(low, high);
    let bounds = [points[0].0, points[points.len() - 1].0];
    let dataset = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(theme.line())
        .data(&points);
    let labels = |values: [String; 2]| values.map(|value| Line::styled(value, theme.faint()));
    let widget = Chart::new(vec![dataset])
        .block(block)
        .x_axis(
            Axis::default()
                .bounds(bounds)
                .style(theme.faint())
                .labels(labels([format!("{:.0}", bounds[0]), format!("{:.0}", bounds[1])])),
        )
        .y_axis(
            Axis::default()
                .bounds([low, high])
                .style(theme.faint())
                .labels(labels([text::figure(low), text::figure(high)])),
        );
    frame.render_widget(widget, area);
}
