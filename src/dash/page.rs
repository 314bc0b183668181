//! A page over a screen: one record, the evidence of a step, a comparison, a file.

use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::event::Effect;
use super::evolution::{AttemptFacts, ProposalFacts};
use super::snapshot::{DiffFile, Evidence, RecordDetail};
use super::source::Fault;
use super::text;
use super::theme::Theme;
use crate::domain::Verdict;
use crate::experience::RequestStory;
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
    Request(Box<RequestStory>),
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

/// Columns for the names of pairs, with the gap to their values.
const LABEL: usize = 14;

struct Lines {
    width: usize,
    theme: Theme,
    lines: Vec<Line<'static>>,
}

impl Lines {
    /// Adds a line, or several where it is wider than the page: what is cut off at the edge cannot be read anywhere.
    fn push(&mut self, line: Line<'static>) {
        if line.width() <= self.width {
            self.lines.push(line);
            return;
        }
        let style = line.style;
        let (mut row, mut used) = (Vec::new(), 0);
        for span in line.spans {
            let mut piece = String::new();
            for c in span.content.chars() {
                let columns = c.width().unwrap_or(0);
                if used + columns > self.width && used > 0 {
                    row.push(Span::styled(std::mem::take(&mut piece), span.style));
                    self.lines.push(Line::from(std::mem::take(&mut row)).style(style));
                    used = 0;
                }
                piece.push(c);
                used += columns;
            }
            row.push(Span::styled(piece, span.style));
        }
        self.lines.push(Line::from(row).style(style));
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
        self.pair_in(LABEL, name, value);
    }

    /// Pairs below each other, with as much room for their names as the longest needs.
    fn pairs(&mut self, pairs: &[(String, String)]) {
        let longest = pairs
            .iter()
            .map(|(name, _)| text::clean(name).width())
            .max()
            .unwrap_or(0);
        let column = (longest + 2).min(self.width / 2).max(LABEL);
        for (name, value) in pairs {
            self.pair_in(column, name, value);
        }
    }

    /// A pair whose value begins at `column`. A name that would run into it stands above.
    fn pair_in(&mut self, column: usize, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let mut label = text::clean(name);
        if label.width() >= column {
            let above = Line::styled(std::mem::take(&mut label), self.theme.faint());
            self.push(above);
        }
        let room = self.width.saturating_sub(column).max(10);
        for piece in wrap(&text::clean(value), room) {
            let pad = " ".repeat(column - label.width());
            self.push(Line::from(vec![
                Span::styled(format!("{}{pad}", std::mem::take(&mut label)), self.theme.faint()),
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
        ("response", detail.response.as_deref().unwrap_or_default()),
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
        let figures = verdict.figures.iter();
        out.pairs(
            &figures
                .map(|(name, value)| (name.clone(), text::figures(value)))
                .collect::<Vec<_>>(),
        );
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
    let fields = line.fields.iter().map(|(name, value)| {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (name.clone(), shown)
    });
    out.pairs(&fields.collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The end of an error is often the part that tells what to do.
    #[test]
    fn nothing_on_a_page_is_cut_off_at_the_edge() {
        let fault =
            Fault::new("the head of scenario math moved: expected 074e54ac, found 8b5e11d0 世界; nothing was done")
                .hint("look at the releases again, and decide on what is served by now");
        let words: String = fault.message.clone() + fault.hint.as_deref().unwrap();
        for width in [10, 37, 38, 56, 80] {
            let lines = shown(Body::Failed(fault.clone()), width);
            assert_eq!(lines.concat(), format!("! {words}"), "{width}");
        }
        let mut evidence = crate::dash::sample::evidence();
        let verdict = evidence.verdict.as_mut().unwrap();
        verdict.evaluator = "tasks/a-suite-with-a-long-name-that-somebody-gave-it".to_owned();
        let mut attempt = crate::dash::sample::tried();
        attempt.verdict = Some(("rejected".to_owned(), "won 1, lost 5 of 8 pairs ".repeat(9)));
        let files = vec![DiffFile {
            path: "a/path/that/is/long".repeat(9),
            lines: vec!["+a line".repeat(30)],
        }];
        let bodies = || {
            [
                Body::Evidence(Box::new(evidence.clone())),
                Body::Attempt(Box::new(attempt.clone())),
                Body::Diff(files.clone()),
                Body::Record(Box::new(crate::dash::sample::detail())),
            ]
        };
        for width in [10, 24, 38, 56, 80] {
            for lines in bodies().map(|body| shown(body, width)) {
                for line in &lines {
                    assert!(line.width() <= usize::from(width), "{line:?} in {width}");
                }
            }
        }
        let [evidence, attempt, diff, _] = bodies().map(|body| shown(body, 38).concat());
        assert!(evidence.contains("long-name-that-somebody-gave-it"), "{evidence}");
        assert!(attempt.contains(&"won 1, lost 5 of 8 pairs ".repeat(9)), "{attempt}");
        assert!(diff.contains(&"a/path/that/is/long".repeat(9)), "{diff}");
    }

    fn shown(body: Body, width: u16) -> Vec<String> {
        let page = Page::showing("a page".to_owned(), body);
        page.lines(width, Theme::Plain)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_name_never_runs_into_its_value_and_figures_are_rounded() {
        let mut evidence = crate::dash::sample::evidence();
        let figures = &mut evidence.verdict.as_mut().unwrap().figures;
        figures.insert("candidate_mean".to_owned(), json!(0.733_984_375));
        figures.insert("e_value_needed".to_owned(), json!(10.0));
        figures.insert("interval".to_owned(), json!([0.012_345_678_9, 0.498_765_432_1]));
        figures.insert("seeds".to_owned(), json!({"first": 0.123_456_789, "rule": "review"}));
        let lines = shown(Body::Evidence(Box::new(evidence)), 80);
        for line in [
            "candidate_mean  0.7340",
            "e_value_needed  10",
            "interval        [0.0123, 0.4988]",
            "seeds           first 0.1235, rule review",
        ] {
            assert!(lines.iter().any(|other| other == line), "{line:?} in {lines:#?}");
        }
        // A name for which the column is too narrow stands above its value.
        let name = "a.name.that.is.longer.than.half.of.the.page";
        let mut line = crate::dash::sample::logs().swap_remove(0);
        line.fields.insert(name.to_owned(), json!("value"));
        let lines = shown(Body::Log(line), 40);
        let at = lines.iter().position(|line| line.trim() == "value").unwrap();
        assert!(
            name.starts_with(&lines[at - 1]) || name.ends_with(&lines[at - 1]),
            "{lines:#?}"
        );
    }

    #[test]
    fn wide_characters_count_twice_and_nothing_is_lost() {
        assert_eq!(wrap("abcdef", 4), ["abcd", "ef"]);
        assert_eq!(wrap("世界世界", 5), ["世界", "世界"]);
        assert_eq!(wrap("", 5), [""]);
    }
}
