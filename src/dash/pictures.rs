//! Pictures of the screens as SVG, drawn from the cells of the buffer. `scripts/pictures.sh` writes them into
//! docs/pictures; a test holds those to the screens.

use std::fmt::Write;
use std::path::Path;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::app::Screen;
use super::sample;
use super::screens_tests::{app, buffer};
use super::theme::Theme;

const COLUMN: f64 = 8.4;
const ROW: f64 = 18.0;
const EDGE: f64 = 12.0;
const PAPER: &str = "#14181c";
const INK: &str = "#d9dde0";

/// The colour of one of the 256 of a terminal.
fn indexed(index: u8) -> String {
    if index >= 232 {
        let level = 8 + 10 * u32::from(index - 232);
        return format!("#{level:02x}{level:02x}{level:02x}");
    }
    let at = u32::from(index.saturating_sub(16));
    let level = |n: u32| if n == 0 { 0 } else { 55 + 40 * n };
    format!("#{:02x}{:02x}{:02x}", level(at / 36), level(at / 6 % 6), level(at % 6))
}

fn foreground(cell: &Cell) -> String {
    match cell.fg {
        Color::Indexed(index) => indexed(index),
        _ => INK.to_owned(),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The buffer as a picture: one text for each run of equal style, so that it stays small and can be searched.
fn svg(buffer: &Buffer, title: &str) -> String {
    let (width, height) = (buffer.area.width, buffer.area.height);
    let (w, h) = (
        f64::from(width) * COLUMN + 2.0 * EDGE,
        f64::from(height) * ROW + 2.0 * EDGE,
    );
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w:.1} {h:.1}\" width=\"{w:.0}\" height=\"{h:.0}\" \
         font-family=\"'DejaVu Sans Mono','Cascadia Mono',Menlo,Consolas,monospace\" font-size=\"14\" xml:space=\"preserve\">\n\
         <title>{}</title>\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{PAPER}\"/>\n",
        escape(title)
    );
    for y in 0..height {
        let mut x = 0;
        while x < width {
            let first = &buffer[(x, y)];
            let style = (first.fg, first.modifier);
            let start = x;
            let mut text = String::new();
            while x < width && (buffer[(x, y)].fg, buffer[(x, y)].modifier) == style {
                text.push_str(buffer[(x, y)].symbol());
                x += 1;
            }
            let reversed = style.1.contains(Modifier::REVERSED);
            if text.trim().is_empty() && !reversed {
                continue;
            }
            let (left, top) = (EDGE + f64::from(start) * COLUMN, EDGE + f64::from(y) * ROW);
            let wide = f64::from(x - start) * COLUMN;
            let color = foreground(first);
            if reversed {
                let _infallible = writeln!(
                    out,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{ROW}\" fill=\"{color}\"/>"
                );
            }
            let _infallible = writeln!(
                out,
                "<text x=\"{left:.1}\" y=\"{:.1}\" textLength=\"{wide:.1}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{}\"{}>{}</text>",
                top + 13.5,
                if reversed { PAPER } else { &color },
                if style.1.contains(Modifier::BOLD) {
                    " font-weight=\"bold\""
                } else {
                    ""
                },
                escape(&text)
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

fn pictures() -> Vec<(&'static str, String)> {
    let shown = [
        ("overview", Screen::Overview),
        ("traffic", Screen::Traffic),
        ("training", Screen::Training),
        ("releases", Screen::Releases),
        ("harness", Screen::Harness),
        ("logs", Screen::Logs),
    ];
    let mut pictures: Vec<(&str, String)> = shown
        .iter()
        .map(|(name, screen)| {
            let mut app = app((120, 34), Theme::Dark);
            app.screen = *screen;
            (*name, svg(&buffer(&app), &format!("reef dash: {name}")))
        })
        .collect();
    let mut app = app((120, 34), Theme::Dark);
    app.screen = Screen::Releases;
    let body = super::page::Body::Evidence(Box::new(sample::evidence()));
    app.page = Some(super::page::Page::showing("evidence of step 23".to_owned(), body));
    pictures.push(("evidence", svg(&buffer(&app), "reef dash: the evidence of a step")));
    pictures
}

#[test]
fn the_pictures_are_in_step() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures");
    let write = std::env::var_os("REEF_PICTURES");
    for (name, picture) in pictures() {
        let file = format!("dash-{name}.svg");
        if let Some(dir) = &write {
            std::fs::write(Path::new(dir).join(&file), picture).unwrap();
        } else {
            let there = std::fs::read_to_string(kept.join(&file)).unwrap_or_default();
            assert!(
                there == picture,
                "{file} is behind the screens; run scripts/pictures.sh"
            );
        }
    }
}

#[test]
fn the_colours_of_a_terminal_have_their_usual_values() {
    assert_eq!(indexed(75), "#5fafff");
    assert_eq!(indexed(209), "#ff875f");
    assert_eq!(indexed(245), "#8a8a8a");
}
