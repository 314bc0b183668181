//! The lines beside the tree on the harness screen: what waits for somebody, then what was tried, newest first.

use crate::experience::RequestStory;

use super::app::{App, Screen};
use super::evolution::{AttemptFacts, Edit, Evolution, ProposalFacts};
use super::page::Body;
use super::rows::matches;
use super::snapshot::{Focus, StepFacts};
use super::text;

/// One line.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change<'a> {
    /// A release that waits for a person's decision.
    Held(&'a StepFacts),
    /// An instruction that waits for its turn.
    Request(&'a RequestStory),
    /// A proposal that waits, or one that was refused.
    Proposal(&'a ProposalFacts),
    /// An attempt at a better tree.
    Attempt(&'a AttemptFacts),
    /// A step that no attempt was made for.
    Step(&'a StepFacts),
}

/// How many wait, of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) decisions: usize,
    pub(super) requests: usize,
    pub(super) proposals: usize,
}

impl Waiting {
    pub(super) fn of(focus: &Focus) -> Self {
        let Evolution {
            proposals, requests, ..
        } = &focus.evolution;
        Self {
            decisions: focus.steps.iter().filter(|step| step.waits()).count(),
            requests: requests.iter().filter(|request| request.step.is_none()).count(),
            proposals: proposals.iter().filter(|proposal| proposal.waits()).count(),
        }
    }
}

/// The lines after the filter.
pub(super) fn shown(app: &App) -> Vec<Change<'_>> {
    let Some(focus) = app.snapshot.as_ref().and_then(|snapshot| snapshot.focus.as_ref()) else {
        return Vec::new();
    };
    let filter = &app.filters[Screen::Harness.place()];
    let all = all(focus).into_iter();
    all.filter(|change| filter.is_empty() || matches(filter, &change.words()))
        .collect()
}

fn all(focus: &Focus) -> Vec<Change<'_>> {
    let Evolution {
        attempts,
        proposals,
        requests,
    } = &focus.evolution;
    let made = |step: &StepFacts| attempts.iter().find(|attempt| attempt.step == Some(step.step));
    let held = focus.steps.iter().filter(|step| step.waits());
    let mut lines: Vec<Change<'_>> = held
        .map(|step| made(step).map_or(Change::Held(step), Change::Attempt))
        .collect();
    let waiting = requests.iter().filter(|request| request.step.is_none());
    lines.extend(waiting.map(Change::Request));
    lines.extend(
        proposals
            .iter()
            .filter(|proposal| proposal.waits())
            .map(Change::Proposal),
    );
    let first: Vec<String> = lines.iter().map(Change::key).collect();
    let tried = attempts.iter().map(Change::Attempt);
    let refused = proposals.iter().filter(|proposal| proposal.state == "refused");
    let steps = focus
        .steps
        .iter()
        .filter(|step| (step.batch.is_some() || step.asked.is_some()) && !step.waits() && made(step).is_none());
    let mut past: Vec<Change<'_>> = tried
        .chain(refused.map(Change::Proposal))
        .chain(steps.map(Change::Step))
        .filter(|line| !first.contains(&line.key()))
        .collect();
    past.sort_by_key(|line| std::cmp::Reverse(line.at_us()));
    lines.extend(past);
    lines
}

fn short(edits: &[Edit]) -> String {
    edits.iter().map(Edit::short).collect::<Vec<_>>().join(" ")
}

impl Change<'_> {
    /// What it is.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::Held(_) => "decision",
            Self::Request(_) => "request",
            Self::Proposal(_) => "proposal",
            Self::Attempt(_) => "attempt",
            Self::Step(_) => "step",
        }
    }

    /// Its full id; of a step, its number.
    pub(super) fn id(&self) -> String {
        match self {
            Self::Held(step) | Self::Step(step) => step.step.to_string(),
            Self::Request(request) => request.id.to_string(),
            Self::Proposal(proposal) => proposal.id.clone(),
            Self::Attempt(attempt) => attempt.id.clone(),
        }
    }

    /// What the cursor finds it again by.
    pub(super) fn key(&self) -> String {
        format!("{} {}", self.what(), self.id())
    }

    /// Where it is, or how it ended.
    pub(super) fn state(&self) -> &str {
        match self {
            Self::Held(step) | Self::Step(step) => step.became(),
            Self::Request(request) => &request.state,
            Self::Proposal(proposal) => &proposal.state,
            Self::Attempt(attempt) => &attempt.state,
        }
    }

    /// Whose idea it was.
    pub(super) fn author(&self) -> String {
        match self {
            Self::Held(_) | Self::Step(_) => "the loop".to_owned(),
            Self::Request(request) => request.session.clone().unwrap_or_default(),
            Self::Proposal(proposal) => proposal.session.clone(),
            Self::Attempt(attempt) => attempt.session.clone().unwrap_or_else(|| attempt.source.clone()),
        }
    }

    fn at_us(&self) -> i64 {
        match self {
            Self::Held(step) | Self::Step(step) => step.at_us,
            Self::Request(request) => request.at_us,
            Self::Proposal(proposal) => proposal.at_us,
            Self::Attempt(attempt) => attempt.began_us,
        }
    }

    /// The time shown with it.
    pub(super) fn time(&self) -> String {
        text::clock(self.at_us())
    }

    /// What it changes and what led to it, in a line.
    pub(super) fn summary(&self) -> String {
        match self {
            Self::Held(step) | Self::Step(step) => {
                let why = step.reason.as_deref().unwrap_or(&step.kind);
                let asked = step.asked.as_ref().map(|asked| format!(" ← asked: {asked}"));
                format!(
                    "step {} {}  {why}{}",
                    step.step,
                    text::short(&step.release),
                    asked.unwrap_or_default()
                )
            }
            Self::Request(request) => request
                .text
                .clone()
                .unwrap_or_else(|| "its text is no longer kept".to_owned()),
            Self::Proposal(proposal) => match &proposal.outcome {
                Some(outcome) if !proposal.waits() => format!("{outcome} ({})", proposal.reason),
                _ => format!("{}  {}", short(&proposal.edits), proposal.reason),
            },
            Self::Attempt(attempt) => {
                let change = if attempt.edits.is_empty() {
                    attempt.outcome.clone().unwrap_or_default()
                } else {
                    short(&attempt.edits)
                };
                match cause(attempt) {
                    Some(cause) => format!("{change} ← {cause}"),
                    None => change,
                }
            }
        }
    }

    fn words(&self) -> String {
        format!(
            "{} {} {} {} {}",
            self.what(),
            self.state(),
            self.author(),
            self.summary(),
            self.id()
        )
    }

    /// What a page says of it without asking the source; steps have their evidence.
    pub(super) fn body(&self) -> Option<Body> {
        match self {
            Self::Held(_) | Self::Step(_) => None,
            Self::Request(request) => Some(Body::Request(Box::new((*request).clone()))),
            Self::Proposal(proposal) => Some(Body::Proposal(Box::new((*proposal).clone()))),
            Self::Attempt(attempt) => Some(Body::Attempt(Box::new((*attempt).clone()))),
        }
    }
}

/// What an attempt answers to.
fn cause(attempt: &AttemptFacts) -> Option<String> {
    if let Some(asked) = &attempt.asked {
        return Some(format!("asked: {asked}"));
    }
    let worst = attempt.failures.first()?;
    let count = attempt.failures_total;
    let said = if worst.feedback.is_empty() {
        String::new()
    } else {
        format!(": {}", worst.feedback)
    };
    let score = worst
        .score
        .map_or(String::new(), |score| format!(" ({})", text::figure(score)));
    Some(format!(
        "{count} failure{}{score}{said}",
        if count == 1 { "" } else { "s" }
    ))
}
