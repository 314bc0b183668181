//! A page over a screen: one record, the evidence of a step, a comparison, a file.

use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthChar;

use super::event::Effect;
use super::evolution::{AttemptFacts, ProposalFacts, RequestFacts};
use super::snapshot::{DiffFile, Evidence, RecordDetail};
use super::source::Fault;
use super::text;
use super::theme::Theme;
use crate::domain::Verdict;
use crate::telemetry::LogLine;

mod tried;

pub(super) use tried::style;

/// An open page.
pub(super) struct Page {
    pub(super) title: String,
    /// What was asked for it; only the answer to this belongs on it.
    asked: Option<Effect>,
    pub(super) body: Body,
    pub(super) scroll: usize,
}

/// What is on it.
#[derive(Debug)]
pub(super) enum Body {
    Waiting,
    Failed(Fault),
    Record(Box<RecordDetail>),
    Evidence(Box<Evidence>),
    Attempt(Box<AttemptFacts>),
    Proposal(Box<ProposalFacts>),
    Request(Box<RequestFacts>),
    Diff(Vec<DiffFile>),
    File(String),
    Log(LogLine),
}

impl Page {
    /// A page whose content is on its way, as the answer to `asked`.
    pub(super) fn waiting(title: String, asked: &Effect) -> Self {
        Self {
            title,
            asked: Some(asked.clone()),
            body: Body::Waiting,
            scroll: 0,
        }
    }

    /// A page whose content is at hand.
    pub(super) fn showing(title: String, body: Body) -> Self {
        Self {
            title,
            asked: None,
            body,
            scroll: 0,
        }
    }

    /// Takes the answer to `asked`, if this page asked that.
    pub(super) fn fill(&mut self, asked: &Effect, result: Result<Body, Fault>) {
        if self.asked.as_ref() == Some(asked) {
            self.body = result.unwrap_or_else(Body::Failed);
            self.scroll = 0;
        }
    }

    pub(super) fn scroll_by(&mut self, lines: isize, area: Rect, theme: Theme) {
        let height = usize::from(area.height.saturating_sub(2));
        let total = self.lines(area.width.saturating_sub(4), theme).len();
        self.scroll = self
            .scroll
            .saturating_add_signed(lines)
            .min(total.saturating_sub(height));
    }

    /// Its lines, none wider than `width`.
    pub(super) fn lines(&self, width: u16, theme: Theme) -> Vec<Line<'static>> {
        let mut out = Lines {
            width: usize::from(width.max(10)),
            theme,
            lines: Vec::new(),
        };
        match &self.body {
            Body::Waiting => out.faint("reading …"),
            Body::Failed(fault) => {
                out.push(Line::styled(format!("! {}", text::clean(&fault.message)), theme.bad()));
                if let Some(hint) = &fault.hint {
                    out.text(hint);
                }
            }
            Body::Record(detail) => record(&mut out, detail),
            Body::Evidence(evidence) => self::evidence(&mut out, evidence),
            Body::Attempt(attempt) => tried::attempt(&mut out, attempt),
            Body::Proposal(proposal) => tried::proposal(&mut out, proposal),
            Body::Request(request) => tried::request(&mut out, request),
            Body::Diff(files) => diff(&mut out, files),
            Body::File(text) => out.text(text),
            Body::Log(line) => log(&mut out, line),
        }
        out.lines
    }
}

struct Lines {
    width: usize,
    theme: Theme,
    lines: Vec<Line<'static>>,
}

impl Lines {
    fn push(&mut self, line: Line<'static>) {
        self.lines.push(line);
    }

    fn head(&mut self, title: &str) {
        if !self.lines.is_empty() {
            self.push(Line::default());
        }
        self.push(Line::styled(title.to_owned(), self.theme.strong()));
    }

    fn faint(&mut self, text: &str) {
        self.push(Line::styled(text.to_owned(), self.theme.faint()));
    }

    /// Text from outside, wrapped.
    fn text(&mut self, text: &str) {
        for line in text.lines() {
            for piece in wrap(&text::clean(line), self.width) {
                self.push(Line::raw(piece));
            }
        }
    }

    fn pair(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let room = self.width.saturating_sub(14).max(10);
        for (at, piece) in wrap(&text::clean(value), room).into_iter().enumerate() {
            let label = if at == 0 { text::clean(name) } else { String::new() };
            self.push(Line::from(vec![
                Span::styled(format!("{label:<14}"), self.theme.faint()),
                Span::raw(piece),
            ]));
        }
    }
}

/// Pieces no wider than `width` columns; wide characters count twice.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let (mut piece, mut used) = (String::new(), 0);
    for c in text.chars() {
        let columns = c.width().unwrap_or(0);
        if used + columns > width && !piece.is_empty() {
            pieces.push(std::mem::take(&mut piece));
            used = 0;
        }
        piece.push(c);
        used += columns;
    }
    pieces.push(piece);
    pieces
}

fn record(out: &mut Lines, detail: &RecordDetail) {
    let facts = &detail.facts;
    let number = |value: Option<u64>| value.map_or(String::new(), |n| n.to_string());
    out.pair("id", &facts.id);
    out.pair("kind", &facts.kind);
    out.pair("time", &format!("{} UTC", text::moment(facts.at_us)));
    out.pair("route", facts.route.as_deref().unwrap_or_default());
    out.pair(
        "status",
        &facts.status.map_or(String::new(), |status| status.to_string()),
    );
    out.pair("model", facts.model.as_deref().unwrap_or_default());
    out.pair("stopped", facts.stop_reason.as_deref().unwrap_or_default());
    out.pair(
        "took",
        &facts.total_us.filter(|us| *us > 0).map_or(String::new(), text::took),
    );
    out.pair("tokens in", &number(facts.input_tokens));
    out.pair("tokens out", &number(facts.output_tokens));
    out.pair("release", facts.release.as_deref().unwrap_or_default());
    out.pair("load", facts.load.as_deref().unwrap_or_default());
    out.pair("tags", &facts.tags.join(" "));
    out.pair("score", &facts.score.map_or(String::new(), text::figure));
    for (at, reference) in facts.references.iter().enumerate() {
        out.pair(if at == 0 { "grades" } else { "" }, reference);
    }
    for (at, used) in detail.consumed.iter().enumerate() {
        out.pair(if at == 0 { "trained" } else { "" }, used);
    }
    if facts.pruned {
        out.push(Line::styled(
            "~ retention dropped the bodies of this record",
            out.theme.warn(),
        ));
    }
    if facts.kind == "inference" {
        out.head(&format!("reports ({})", detail.reports.len()));
        if detail.reports.is_empty() {
            out.faint("none yet; reef report, or POST /reef/report, quotes the id above");
        }
        for report in &detail.reports {
            let score = report.score.map_or("no score".to_owned(), text::figure);
            out.pair(&score, &format!("{} {}", text::moment(report.at_us), report.feedback));
            out.pair("", &report.id);
        }
    }
    if let Some(capture) = &detail.capture {
        out.head("tokens");
        out.pair("prompt", &capture.prompt.to_string());
        out.pair("generated", &capture.tokens.to_string());
        out.pair("temperature", &text::figure(f64::from(capture.temperature)));
        out.pair("ended", &capture.finish_reason);
        for (start, end, load) in &capture.spans {
            out.pair(&format!("{start}..{end}"), &format!("load {load}"));
        }
    }
    let sections = [
        ("reasoning", detail.reasoning.as_str()),
        ("answer", detail.answer.as_str()),
    ];
    for (title, body) in sections {
        if !body.is_empty() {
            out.head(title);
            out.text(body);
        }
    }
    if !detail.tool_calls.is_empty() {
        out.head("tool calls");
        for call in &detail.tool_calls {
            out.text(call);
        }
    }
    if let Some(request) = &detail.request {
        out.head(if facts.kind == "inference" { "request" } else { "says" });
        out.text(request);
    }
}

fn evidence(out: &mut Lines, evidence: &Evidence) {
    match &evidence.verdict {
        Some(verdict) => self::verdict(out, verdict),
        None => out.faint("no gate judged this step"),
    }
    if !evidence.failures.is_empty() {
        out.head("worst reports of its batch");
        for (id, score, said) in &evidence.failures {
            out.pair(&text::figure(*score), &format!("{} {said}", text::short_record(id)));
        }
    }
}

fn verdict(out: &mut Lines, verdict: &Verdict) {
    let (theme, mark) = (out.theme, mark(verdict.outcome.as_str()));
    let style = match verdict.outcome.as_str() {
        "selected" => theme.good(),
        "rejected" => theme.bad(),
        _ => theme.warn(),
    };
    out.push(Line::from(vec![
        Span::styled(format!("{mark} {}", verdict.outcome.as_str()), style),
        Span::raw(format!(
            "  by the rule {}, measured by {}",
            text::clean(&verdict.selector),
            text::clean(&verdict.evaluator)
        )),
    ]));
    out.text(&verdict.reason);
    if !verdict.figures.is_empty() {
        out.head("figures");
        for (name, value) in &verdict.figures {
            let shown = value.as_f64().map_or_else(|| value.to_string(), text::figure);
            out.pair(name, &shown);
        }
    }
    out.head(&format!("tasks ({} pairs)", verdict.pairs.len()));
    let task_width = out.width.saturating_sub(32).clamp(8, 50);
    out.faint(&format!(
        "{:<task_width$} {:>9} {:>9}  better",
        "task", "candidate", "current"
    ));
    for pair in &verdict.pairs {
        let score = |value: Option<f64>| value.map_or("-".to_owned(), text::figure);
        let (word, style) = match (pair.candidate, pair.current) {
            (Some(a), Some(b)) if a > b => ("+ won", theme.good()),
            (Some(a), Some(b)) if a < b => ("- lost", theme.bad()),
            (Some(_), Some(_)) => ("= tied", theme.faint()),
            _ => ("~ invalid", theme.warn()),
        };
        let mut task = text::clean(&pair.task);
        if pair.repeat > 0 {
            task.push_str(&format!(" #{}", pair.repeat + 1));
        }
        if pair.protected {
            task.push_str(" (protected)");
        }
        let task = wrap(&task, task_width).swap_remove(0);
        out.push(Line::from(vec![
            Span::raw(format!(
                "{task:<task_width$} {:>9} {:>9}  ",
                score(pair.candidate),
                score(pair.current)
            )),
            Span::styled(word, style),
        ]));
        if let Some(failure) = &pair.failure {
            out.pair("", failure);
        }
    }
}

/// The sign that goes with an outcome, so that colour is never alone.
pub(super) fn mark(outcome: &str) -> &'static str {
    match outcome {
        "released" | "selected" | "promoted" | "published" | "won" => "✓",
        "rejected" | "refused" => "✗",
        "held" => "?",
        "skipped" | "stale" | "rolled_back" => "~",
        "inconclusive" => "≈",
        "invalid" => "!",
        _ => "·",
    }
}

fn diff(out: &mut Lines, files: &[DiffFile]) {
    if files.is_empty() {
        out.faint("no file differs");
    }
    for file in files {
        out.head(&text::clean(&file.path));
        for line in &file.lines {
            let style = match line.as_bytes().first() {
                _ if line.starts_with("+++") || line.starts_with("---") => out.theme.faint(),
                Some(b'+') => out.theme.good(),
                Some(b'-') => out.theme.second(),
                Some(b'@') => out.theme.faint(),
                _ => ratatui::style::Style::new(),
            };
            for piece in wrap(&text::clean(line), out.width) {
                out.push(Line::styled(piece, style));
            }
        }
    }
}

fn log(out: &mut Lines, line: &LogLine) {
    out.pair("time", &format!("{} UTC", text::moment(line.at_us)));
    out.pair("level", &line.level);
    out.pair("from", &line.target);
    out.pair("message", &line.message);
    for (name, value) in &line.fields {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        out.pair(name, &shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_count_twice_and_nothing_is_lost() {
        assert_eq!(wrap("abcdef", 4), ["abcd", "ef"]);
        assert_eq!(wrap("世界世界", 5), ["世界", "世界"]);
        assert_eq!(wrap("", 5), [""]);
    }
}
