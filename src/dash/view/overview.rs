//! Every scenario at a glance, and the one in focus in more words.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::list::{self, Column, left, right, spark, spark_rate};
use super::training::ended;
use crate::dash::app::App;
use crate::dash::history::recent;
use crate::dash::page::{mark, wrap};
use crate::dash::rows;
use crate::dash::snapshot::{Live, ScenarioFacts, Snapshot};
use crate::dash::text;

const COLUMNS: &[Column] = &[
    left("scenario", 0, 0),
    left("mode", 6, 130),
    left("release", 12, 0),
    right("step", 5, 0),
    left("verdict", 11, 70),
    left("loop", 14, 78),
    right("queue", 6, 100),
    right("exchanges", 9, 60),
    right("reports", 8, 92),
    right("score", 7, 140),
    left("reward", 16, 110),
    right("last", 7, 0),
];

fn split(body: Rect) -> [Rect; 2] {
    let below = if body.height >= 24 {
        13
    } else {
        (body.height / 2).min(9)
    };
    Layout::vertical([Constraint::Fill(1), Constraint::Length(below)]).areas(body)
}

pub(super) fn list(body: Rect) -> Rect {
    let [top, _] = split(body);
    list::lines(top, 1)
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, body: Rect) {
    let [_, below] = split(body);
    let area = list(body);
    let shown = rows::scenarios(app);
    list::draw(frame, app.theme, area, COLUMNS, shown.len(), app.cursor(), |at| {
        cells(app, shown[at])
    });
    if shown.is_empty() {
        let words = "no scenario yet; the first request makes one, and so does reef scenario create NAME";
        list::empty(frame, app.theme, area, !app.filter().is_empty(), words);
    }
    if let Some(snapshot) = &app.snapshot {
        let selected = shown.get(app.cursor()).copied();
        panel(frame, app, snapshot, selected, below);
    }
}

fn cells(app: &App, facts: &ScenarioFacts) -> Vec<list::Cell> {
    let (theme, plain) = (app.theme, Style::new());
    let outcome = facts.outcome.as_deref().unwrap_or("-");
    let progress = facts
        .progress
        .map_or(String::new(), |share| format!(" {:.0}%", share * 100.0));
    let (phase, style) = match (&facts.trouble, facts.phase.as_str()) {
        (Some(_), "") => ("! trouble".to_owned(), theme.warn()),
        (Some(_), phase) => (format!("! {phase}"), theme.warn()),
        (None, "" | "idle" | "off") => (
            if facts.phase.is_empty() {
                "-".to_owned()
            } else {
                facts.phase.clone()
            },
            theme.faint(),
        ),
        (None, phase) => (format!("▸ {phase}{progress}"), theme.line()),
    };
    vec![
        (text::clean(&facts.name), theme.strong()),
        (facts.mode.clone(), plain),
        (facts.release.as_deref().map_or("-".to_owned(), text::short), plain),
        (facts.step.map_or("-".to_owned(), |step| step.to_string()), plain),
        (format!("{} {outcome}", mark(outcome)), ended(theme, outcome)),
        (phase, style),
        (facts.pending.map_or("-".to_owned(), text::count), plain),
        (text::count(facts.exchanges), plain),
        (text::count(facts.reports), plain),
        (facts.mean_score.map_or("-".to_owned(), text::figure), plain),
        (spark(&facts.rewards, 16), theme.line()),
        (
            facts.last_us.map_or("-".to_owned(), |at| text::ago(at, app.now_us)),
            theme.faint(),
        ),
    ]
}

fn panel(frame: &mut Frame<'_>, app: &App, snapshot: &Snapshot, selected: Option<&ScenarioFacts>, area: Rect) {
    let theme = app.theme;
    let block = Block::new().borders(Borders::TOP).border_style(theme.faint());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let wide = inner.width >= 90;
    let [l, r] = if wide {
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(44)]).areas(inner)
    } else {
        [inner, Rect::default()]
    };
    let mut lines = Vec::new();
    let width = usize::from(l.width);
    let room = width.saturating_sub(13);
    let mut pair = |name: &str, value: String, style: Style| {
        lines.push(Line::from(vec![
            Span::styled(format!(" {name:<11}"), theme.faint()),
            Span::styled(list::fit(&value, room, false), style),
        ]));
    };
    let exchanges = app.history.exchange_rates();
    if !wide {
        pair(
            "exchanges/s",
            rate_line(&exchanges, width.saturating_sub(30)),
            theme.line(),
        );
    }
    if let Some(facts) = selected {
        if let Some(trouble) = &facts.trouble {
            for (at, piece) in error_lines(trouble, room).into_iter().enumerate() {
                pair(if at == 0 { "trouble" } else { "" }, piece, theme.warn());
            }
        }
        if let Some(release) = &facts.release {
            pair("release", text::clean(release), Style::new());
        }
        if let Some(load) = &facts.load {
            pair("load", text::clean(load), Style::new());
        }
        let ago = facts
            .step_us
            .map_or(String::new(), |at| format!(", {} ago", text::ago(at, app.now_us)));
        pair(
            "last step",
            facts.step.map_or("none yet".to_owned(), |step| {
                format!("{step} {}{ago}", facts.outcome.as_deref().unwrap_or_default())
            }),
            Style::new(),
        );
        pair(
            "waiting",
            format!(
                "{} samples, {} instructions",
                facts.pending.map_or("?".to_owned(), text::count),
                facts.instructions
            ),
            Style::new(),
        );
        pair(
            "records",
            format!(
                "{} used by batches, {} interrupted, {} left out of training",
                text::count(facts.consumed),
                text::count(facts.interrupted),
                text::count(facts.excluded.values().sum())
            ),
            Style::new(),
        );
        pair(
            "tokens",
            format!(
                "{} in, {} out",
                text::count(facts.input_tokens),
                text::count(facts.output_tokens)
            ),
            Style::new(),
        );
    }
    if let Some(error) = &snapshot.store.error {
        for (at, piece) in error_lines(error, room).into_iter().enumerate() {
            pair(if at == 0 { "store" } else { "" }, piece, theme.bad());
        }
    }
    pair("store", store(snapshot), Style::new());
    pair("service", service(snapshot), Style::new());
    if let Some(live) = snapshot.service.as_ref().and_then(|service| service.live.as_ref()) {
        pair("engine", engine(live), Style::new());
    }
    frame.render_widget(Paragraph::new(lines), l);
    if wide {
        rates(frame, app, &exchanges, r);
    }
}

/// Lines of the panel that an error may take; the rest is in the log.
const ERROR_LINES: usize = 4;

/// An error in as many lines as it needs, within reason.
fn error_lines(error: &str, width: usize) -> Vec<String> {
    let mut pieces = wrap(&format!("! {}", text::clean(error)), width.max(10));
    if pieces.len() > ERROR_LINES {
        let rest = pieces.split_off(ERROR_LINES - 1).concat();
        pieces.push(list::fit(&rest, width, false));
    }
    pieces
}

fn rate_line(rates: &[f64], width: usize) -> String {
    format!("{:>7}  {}", text::figure(recent(rates)), spark_rate(rates, width))
}

fn rates(frame: &mut Frame<'_>, app: &App, exchanges: &[f64], area: Rect) {
    let theme = app.theme;
    let reports = app.history.report_rates();
    let width = usize::from(area.width.saturating_sub(2));
    let lines = vec![
        Line::from(vec![
            Span::styled("exchanges/s ", theme.faint()),
            Span::styled(text::figure(recent(exchanges)), theme.strong()),
        ]),
        Line::styled(spark_rate(exchanges, width), theme.line()),
        Line::default(),
        Line::from(vec![
            Span::styled("reports/s   ", theme.faint()),
            Span::styled(text::figure(recent(&reports)), theme.strong()),
        ]),
        Line::styled(spark_rate(&reports, width), theme.second()),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn store(snapshot: &Snapshot) -> String {
    let store = &snapshot.store;
    let file = store
        .file_bytes
        .map_or(String::new(), |bytes| format!("{} on disk, ", text::bytes(bytes)));
    format!(
        "{file}{} of bodies, {} records pruned",
        text::bytes(store.stored_bytes),
        text::count(store.pruned)
    )
}

fn service(snapshot: &Snapshot) -> String {
    match &snapshot.service {
        None => "not running; these are the files".to_owned(),
        Some(service) => {
            let pid = service.pid.map_or(String::new(), |pid| format!(", process {pid}"));
            let silent = if service.live.is_none() {
                ", does not answer"
            } else {
                ""
            };
            format!("{}{pid}{silent}", text::clean(&service.url))
        }
    }
}

fn engine(live: &Live) -> String {
    format!(
        "{}, {} in flight, {} writes queued, up {}",
        live.engine,
        live.in_flight,
        live.queue_depth,
        text::ago(0, (live.uptime_s * 1e6) as i64)
    )
}
