//! The page of one instruction.

use serde_json::{Value, json};

use super::progress::{Progress, State};
use super::{PageError, moment, render};

/// Entries of the activity shown.
const SHOWN: usize = 80;

/// The page of an instruction: what was asked and how far it has come. It loads itself again every few seconds until it
/// is settled. `link` leads to the page of its step.
pub fn request_page(
    scenario: &str,
    text: &str,
    asked_us: i64,
    progress: &Progress,
    link: Option<&str>,
) -> Result<String, PageError> {
    let at = State::STAGES
        .iter()
        .position(|stage| *stage == progress.state)
        .unwrap_or(State::STAGES.len());
    let stages: Vec<Value> = State::STAGES
        .iter()
        .enumerate()
        .map(|(index, stage)| {
            let tone = match index.cmp(&at) {
                std::cmp::Ordering::Less => "done",
                std::cmp::Ordering::Equal => "now",
                std::cmp::Ordering::Greater => "",
            };
            json!({"word": stage.as_str(), "tone": tone})
        })
        .collect();
    let activity: Vec<Value> = progress
        .activity
        .iter()
        .rev()
        .take(SHOWN)
        .map(|event| json!({"at": moment(event.at_us), "kind": event.kind, "text": event.text, "failed": event.failed}))
        .collect();
    let tone = match progress.state {
        State::Selected => "good",
        State::Rejected | State::Failed => "bad",
        _ => "wait",
    };
    let context = json!({
        "title": "A request for a better harness",
        "scenario": scenario,
        "status": {"word": progress.state.as_str(), "tone": tone},
        "when": moment(asked_us),
        "text": text,
        "settled": progress.settled(),
        "stages": stages,
        "meaning": progress.meaning(),
        "link": link,
        "step": progress.step,
        "activity": activity,
    });
    render("request.html", &context)
}
