//! Charts as SVG text. Colours come from the page's style sheet, so that they follow its light or dark background.

use std::fmt::Write;

use crate::dash::series::{drawable, widened};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 26.0;

/// What is drawn of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Line,
    Bars,
    Dots,
}

/// Points in order of `x`.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    pub(super) points: Vec<(f64, f64)>,
}

/// How the horizontal axis is labelled.
pub(super) type Label<'a> = &'a dyn Fn(f64) -> String;

/// A chart of one or more series over the same axes.
pub(super) fn chart(title: &str, series: &[Series<'_>], label: Label<'_>) -> String {
    let points = || series.iter().flat_map(|series| series.points.iter().copied());
    let finite = || points().filter(|(x, y)| drawable(*x) && drawable(*y));
    if finite().next().is_none() {
        return format!("<p class=\"none\">{}: nothing to draw yet</p>", escape(title));
    }
    let bars = series.iter().any(|series| series.kind == Kind::Bars);
    let span = |pick: fn((f64, f64)) -> f64| {
        finite()
            .map(pick)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
                (low.min(v), high.max(v))
            })
    };
    let (x_low, x_high) = span(|(x, _)| x);
    let (x_low, x_high) = widened(x_low, x_high);
    let (mut y_low, y_high) = span(|(_, y)| y);
    if bars {
        y_low = y_low.min(0.0);
    }
    let ticks = ticks(y_low, y_high);
    let (y_low, y_high) = (ticks[0].min(y_low), ticks[ticks.len() - 1].max(y_high));
    let x = |value: f64| LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\"><title>{0}</title>",
        escape(title)
    );
    for tick in &ticks {
        let at = y(*tick);
        // Writing to a String cannot fail.
        let _infallible = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            number(*tick)
        );
    }
    for (value, anchor) in [(x_low, "start"), ((x_low + x_high) / 2.0, "middle"), (x_high, "end")] {
        let _infallible = write!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            x(value),
            HEIGHT - 8.0,
            escape(&label(value))
        );
    }
    for (at, series) in series.iter().enumerate() {
        let shown = series.points.iter().filter(|(x, y)| drawable(*x) && drawable(*y));
        draw(&mut out, at, series, shown, &x, &y, label);
    }
    out.push_str("</svg>");
    if series.len() > 1 {
        out.push_str("<p class=\"legend\">");
        for (at, series) in series.iter().enumerate() {
            let _infallible = write!(out, "<span class=\"key s{at}\"></span>{} ", escape(series.name));
        }
        out.push_str("</p>");
    }
    out
}

fn draw<'a>(
    out: &mut String,
    at: usize,
    series: &Series<'_>,
    shown: impl Iterator<Item = &'a (f64, f64)>,
    x: &dyn Fn(f64) -> f64,
    y: &dyn Fn(f64) -> f64,
    label: Label<'_>,
) {
    let shown: Vec<&(f64, f64)> = shown.collect();
    let tip = |px: f64, py: f64| {
        format!(
            "<title>{} {}: {}</title>",
            escape(&label(px)),
            escape(series.name),
            number(py)
        )
    };
    match series.kind {
        Kind::Line => {
            let path: Vec<String> = shown
                .iter()
                .enumerate()
                .map(|(n, (px, py))| format!("{}{:.1} {:.1}", if n == 0 { "M" } else { "L" }, x(*px), y(*py)))
                .collect();
            let _infallible = write!(out, "<path class=\"line s{at}\" d=\"{}\"/>", path.join(""));
            for (px, py) in shown {
                let _infallible = write!(
                    out,
                    "<circle class=\"hit s{at}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\">{}</circle>",
                    x(*px),
                    y(*py),
                    tip(*px, *py)
                );
            }
        }
        Kind::Dots => {
            for (px, py) in shown {
                let _infallible = write!(
                    out,
                    "<circle class=\"dot s{at}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.2\">{}</circle>",
                    x(*px),
                    y(*py),
                    tip(*px, *py)
                );
            }
        }
        Kind::Bars => {
            let wide = ((WIDTH - LEFT - RIGHT) / shown.len().max(1) as f64 * 0.8).clamp(0.6, 28.0);
            for (px, py) in shown {
                let (top, bottom) = (y(*py), y(0.0));
                let left = (x(*px) - wide / 2.0).clamp(LEFT, WIDTH - RIGHT - wide);
                let _infallible = write!(
                    out,
                    "<rect class=\"bar s{at}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"{:.1}\">{}</rect>",
                    top.min(bottom),
                    (bottom - top).abs().max(0.5),
                    tip(*px, *py)
                );
            }
        }
    }
}

/// Two sides of one task, as bars between 0 and the largest of them.
pub(super) fn pair(candidate: Option<f64>, current: Option<f64>, most: f64) -> String {
    let wide = |value: Option<f64>| value.map_or(0.0, |value| (value / most.max(1e-9) * 118.0).clamp(0.0, 118.0));
    format!(
        "<svg class=\"pair\" viewBox=\"0 0 120 14\" aria-hidden=\"true\"><rect class=\"bar s0\" x=\"1\" y=\"1\" width=\"{:.1}\" \
         height=\"5\"/><rect class=\"bar s1\" x=\"1\" y=\"8\" width=\"{:.1}\" height=\"5\"/></svg>",
        wide(candidate),
        wide(current)
    )
}

/// About four round values that enclose the range.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let (low, high) = widened(low, high);
    let rough = (high - low) / 4.0;
    let scale = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * scale)
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (low / step).floor();
    let last = (high / step).ceil();
    // The range has four steps, or five or six once it is rounded outwards.
    (0..=(last - first).min(12.0) as i64)
        .map(|n| (first + n as f64) * step)
        .collect()
}

fn number(value: f64) -> String {
    let value = if value.abs() < 1e-12 { 0.0 } else { value };
    let size = value.abs();
    if size >= 1e5 || (size > 0.0 && size < 1e-3) {
        return format!("{value:.1e}");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text that cannot act in HTML or SVG.
pub(super) fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_enclose_the_range_with_round_values() {
        assert_eq!(ticks(0.0, 1.0), [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(ticks(0.3, 0.3), [-0.25, 0.0, 0.25, 0.5, 0.75, 1.0]);
        for (low, high) in [(0.0, 1e-9), (-3.7, 812.0), (1e9, 1e9 + 1.0), (0.1, 0.1001)] {
            let ticks = ticks(low, high);
            assert!(
                ticks.len() <= 13 && ticks[0] <= low && *ticks.last().unwrap() >= high,
                "{low} {high}: {ticks:?}"
            );
        }
    }

    #[test]
    fn a_chart_holds_every_finite_point_inside_its_frame_and_escapes_words() {
        let series = [Series {
            name: "<script>",
            kind: Kind::Line,
            points: vec![(1.0, 2.0), (2.0, f64::NAN), (2.5, 1e308), (2.6, -1e308), (3.0, -4.0)],
        }];
        let svg = chart("a & b", &series, &|x| format!("step {x}"));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains("a &amp; b") && svg.contains("&lt;script&gt;") && !svg.contains("<script"));
        for value in svg.split("cy=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!((0.0..=HEIGHT).contains(&value.parse::<f64>().unwrap()), "{value}");
        }
        assert!(chart("empty", &[], &|x| x.to_string()).contains("nothing to draw yet"));
    }
}
