//! Pages about changes of a harness tree: an attempt, a proposal, an instruction.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::{Lines, mark, wrap};
use crate::dash::evolution::{AttemptFacts, Edit, ProposalFacts};
use crate::dash::text;
use crate::dash::theme::Theme;
use crate::domain::RecordId;
use crate::experience::RequestStory;

/// The style that goes with a state.
pub(in crate::dash) fn style(theme: Theme, state: &str) -> Style {
    match state {
        "published" | "released" | "promoted" | "won" | "settled" => theme.good(),
        "rejected" | "refused" => theme.bad(),
        "skipped" | "rolled_back" => theme.faint(),
        _ => theme.warn(),
    }
}

fn state(out: &mut Lines, state: &str, outcome: Option<&str>) {
    let words = format!("{} {}", mark(state), text::clean(state));
    out.push(Line::styled(words, style(out.theme, state)));
    if let Some(outcome) = outcome {
        out.text(outcome);
    }
}

fn edits(out: &mut Lines, edits: &[Edit]) {
    for edit in edits {
        let style = match edit.op.as_str() {
            "create" => out.theme.good(),
            "remove" => out.theme.second(),
            _ => out.theme.warn(),
        };
        let words = format!("{} {}", text::clean(&edit.op), text::clean(&edit.entry));
        for piece in wrap(&words, out.width) {
            out.push(Line::styled(piece, style));
        }
        // Written as JSON, a text of several lines is one line with \n in it.
        for line in edit.options.replace("\\n", "\n    ").lines() {
            for piece in wrap(&text::clean(line), out.width.saturating_sub(2).max(8)) {
                out.push(Line::raw(format!("  {piece}")));
            }
        }
    }
}

pub(super) fn attempt(out: &mut Lines, attempt: &AttemptFacts) {
    state(out, &attempt.state, attempt.outcome.as_deref());
    if let Some(asked) = &attempt.asked {
        out.head("what was asked for");
        out.text(asked);
    }
    if attempt.failures_total > 0 {
        out.head(&format!("failures that led to it ({})", attempt.failures_total));
    }
    for failure in &attempt.failures {
        let score = failure.score.map_or("no score".to_owned(), text::figure);
        let mut receipts = failure.receipts.iter();
        let first = receipts.next().map_or("no exchange", RecordId::as_str);
        out.pair(&score, first);
        for receipt in receipts {
            out.pair("", receipt.as_str());
        }
        out.pair("", &failure.feedback);
    }
    if attempt.failures_total > attempt.failures.len() as u64 {
        out.faint("the worst are shown");
    }
    if attempt.reason.is_some() || !attempt.edits.is_empty() {
        out.head("what it changes");
        out.text(attempt.reason.as_deref().unwrap_or_default());
        edits(out, &attempt.edits);
    }
    if let Some((word, reason)) = &attempt.verdict {
        out.head("what the gate said");
        out.push(Line::from(vec![
            Span::raw(format!("{} {}  ", mark(word), text::clean(word))),
            Span::raw(text::clean(reason)),
        ]));
        out.pairs(&attempt.figures);
        out.pair("worse on", &attempt.worse_on.join(", "));
    }
    if !attempt.activity.is_empty() {
        out.head("what it did");
        for event in &attempt.activity {
            let mark = if event.failed { "! " } else { "" };
            let words = format!("{} {mark}{}", event.kind, event.text);
            out.pair(&text::clock(event.at_us), &words);
        }
    }
    out.head("where it belongs");
    out.pair("attempt", &attempt.id);
    let request = attempt.request.as_deref().unwrap_or_default();
    out.pair("from", &format!("{} {request}", attempt.source));
    out.pair("by", attempt.session.as_deref().unwrap_or_default());
    out.pair("starts from", &attempt.base);
    out.pair("step", &attempt.step.map_or(String::new(), |step| step.to_string()));
    out.pair("release", attempt.release.as_deref().unwrap_or_default());
    out.pair("began", &format!("{} UTC", text::moment(attempt.began_us)));
    out.pair("changed", &format!("{} UTC", text::moment(attempt.changed_us)));
}

pub(super) fn proposal(out: &mut Lines, proposal: &ProposalFacts) {
    state(out, &proposal.state, proposal.outcome.as_deref());
    out.head("what it changes");
    out.text(&proposal.reason);
    if proposal.edits.is_empty() {
        out.faint("what was refused is not kept");
    }
    edits(out, &proposal.edits);
    out.head("where it belongs");
    out.pair("proposal", &proposal.id);
    out.pair("by", &proposal.session);
    out.pair("on release", &proposal.release);
    out.pair("came", &format!("{} UTC", text::moment(proposal.at_us)));
}

pub(super) fn request(out: &mut Lines, request: &RequestStory) {
    state(out, &request.state, request.outcome.as_deref());
    out.head("what is asked for");
    out.text(request.text.as_deref().unwrap_or("its text is no longer kept"));
    out.head("where it belongs");
    out.pair("request", request.id.as_str());
    out.pair("by", request.session.as_deref().unwrap_or_default());
    out.pair("attempt", request.attempt.as_deref().unwrap_or_default());
    out.pair("step", &request.step.map_or(String::new(), |step| step.to_string()));
    out.pair("came", &format!("{} UTC", text::moment(request.at_us)));
}
