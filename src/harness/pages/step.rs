//! The page of one step.

use serde_json::{Map, Value, json};

use super::progress::State;
use super::{PageError, moment, number, render};
use crate::domain::{Operation, ReleaseId, Verdict};
use crate::experience::{Attempt, ReleaseState, StepRow};
use crate::harness::manifest::requires;
use crate::harness::tree::EntryChange;

/// Pairs of a verdict shown.
const SHOWN_PAIRS: usize = 200;

/// Everything the page of a step says.
#[derive(Debug)]
pub struct StepPage<'a> {
    /// The scenario.
    pub scenario: &'a str,
    /// Every step of it, oldest first.
    pub steps: &'a [StepRow],
    /// The step shown.
    pub step: &'a StepRow,
    /// Its row of the catalog.
    pub row: &'a Value,
    /// What the scenario serves.
    pub head: &'a ReleaseId,
    /// What the candidate changed; `None` where nobody can tell any more.
    pub changes: Option<&'a [EntryChange]>,
    /// The gate's evidence.
    pub verdict: Option<&'a Verdict>,
    /// The attempt behind it.
    pub attempt: Option<&'a Attempt>,
}

/// The page. `link` gives the address of another step's page.
pub fn step_page(page: &StepPage<'_>, link: &dyn Fn(u64) -> String) -> Result<String, PageError> {
    let step = page.step;
    let notes = step.metrics.get("proposal_notes");
    let note = |key: &str| notes.and_then(|notes| notes.get(key)).filter(|note| !note.is_null());
    let changes: Vec<Value> = page.changes.unwrap_or_default().iter().map(change).collect();
    let made = matches!(step.outcome.as_str(), "released" | "held");
    let unchanged = match (page.changes, made) {
        (None, _) => "What it would have changed was not kept.",
        (Some(_), true) => "No entry differs from the release before.",
        (Some(_), false) => "No change was proposed.",
    };
    let refused: Vec<String> = note("refused_requires")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(plain)
        .collect();
    let row = page.row.to_string().replace('<', "\\u003c");
    let context = json!({
        "title": format!("Step {}", step.step),
        "scenario": page.scenario,
        "status": status(page),
        "when": moment(step.at_us),
        "why": why(page),
        "design": note("design").map(plain),
        "changes": changes,
        "unchanged": unchanged,
        "review": note("review").and_then(Value::as_object).map(facts),
        "result": result(page),
        "setup": requires(page.steps, &step.release.release_id),
        "refused": refused,
        "chain": chain(page, link),
        "row": row,
    });
    render("step.html", &context)
}

/// A value as text: text as it is, everything else as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => format!("{other:#}"),
    }
}

fn facts(map: &Map<String, Value>) -> Vec<Value> {
    map.iter()
        .map(|(name, value)| json!({"name": name, "value": plain(value)}))
        .collect()
}

fn status(page: &StepPage<'_>) -> Value {
    let step = page.step;
    let promoted = page.steps.iter().find(|later| {
        later.operation == Operation::Promote && later.release.target.as_ref() == Some(&step.release.release_id)
    });
    let (word, tone) = match (step.outcome.as_str(), promoted) {
        ("held", Some(later)) => (format!("Promoted at step {}", later.step), "good"),
        ("held", None) if step.release.state == ReleaseState::Rejected => ("Refused by a person".to_owned(), "bad"),
        ("held", None) => ("Ready for review".to_owned(), "wait"),
        ("released", _) if step.release.release_id == *page.head => ("Published, served now".to_owned(), "good"),
        ("released", _) => ("Published".to_owned(), "good"),
        ("rejected", _) => ("Not selected".to_owned(), "bad"),
        _ if State::of_step(step) == State::Failed => ("Failed".to_owned(), "bad"),
        _ => ("No changes".to_owned(), "wait"),
    };
    json!({"word": word, "tone": tone})
}

fn why(page: &StepPage<'_>) -> Value {
    let step = page.step;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let of = |part: &str, key: &str| text(step.metrics.get(part).and_then(|value| value.get(key)));
    if let Some(asked) = of("training_request", "text") {
        return json!({"what": "A person asked for it:", "text": asked});
    }
    if let Some(reason) = of("proposal", "reason") {
        return json!({"what": "Proposed, because:", "text": reason});
    }
    if let Some(reason) = page.attempt.and_then(|attempt| attempt.reason.clone()) {
        return json!({"what": "Proposed, because:", "text": reason});
    }
    let said = step.release.note.clone();
    let what = match step.operation {
        Operation::Creation => "The scenario started here.",
        Operation::Rollback => "An older release was put back in service.",
        Operation::Promote => "A person promoted a release that was held for review.",
        Operation::Recovery => "A release was adopted while repairing after a crash.",
        Operation::Import => "It was brought in from a directory or a remote.",
        Operation::Training => "Experience with what was served led to it.",
    };
    json!({"what": what, "text": said})
}

fn change(change: &EntryChange) -> Value {
    let parts: Vec<Value> = change
        .parts
        .iter()
        .map(|part| {
            let lines: Vec<Value> = part
                .lines()
                .into_iter()
                .map(|(sign, text)| {
                    let tone = match sign {
                        '+' => "add",
                        '-' => "del",
                        '@' => "far",
                        _ => "",
                    };
                    let sign = if sign == '@' { '…' } else { sign };
                    json!({"tone": tone, "sign": sign, "text": text})
                })
                .collect();
            json!({"path": part.path, "lines": lines})
        })
        .collect();
    json!({"id": change.id, "kind": change.kind, "change": change.change.as_str(), "parts": parts})
}

fn result(page: &StepPage<'_>) -> Value {
    let step = page.step;
    let reason = page
        .verdict
        .map(|verdict| verdict.reason.clone())
        .or_else(|| step.reason.clone())
        .or_else(|| page.attempt.and_then(|attempt| attempt.outcome.clone()))
        .unwrap_or_else(|| match step.operation {
            Operation::Training => "No reason was given.".to_owned(),
            other => format!("A {} is not evaluated.", other.as_str()),
        });
    let mut figures = Vec::new();
    let mut add = |name: &str, value: &Value| {
        let shown = match value {
            Value::Number(value) => value.as_f64().map(number),
            Value::Bool(value) => Some(if *value { "yes" } else { "no" }.to_owned()),
            Value::String(text) if text.len() <= 80 => Some(text.clone()),
            _ => None,
        };
        if let Some(shown) = shown {
            figures.push(json!({"name": name.replace(['_', '/'], " "), "value": shown}));
        }
    };
    if let Some(verdict) = page.verdict {
        add("rule", &json!(verdict.selector));
        add("measured by", &json!(verdict.evaluator));
        for (name, value) in &verdict.figures {
            add(name, value);
        }
    }
    for (name, value) in &step.metrics {
        add(name, value);
    }
    let pairs = page.verdict.map(|verdict| verdict.pairs.as_slice()).unwrap_or_default();
    let shown: Vec<Value> = pairs
        .iter()
        .take(SHOWN_PAIRS)
        .map(|pair| {
            let score = |score: Option<f64>| score.map_or_else(|| "–".to_owned(), number);
            let mut notes = Vec::new();
            if pair.protected {
                notes.push("protected".to_owned());
            }
            notes.extend(pair.failure.clone());
            json!({
                "task": pair.task, "repeat": pair.repeat, "current": score(pair.current),
                "candidate": score(pair.candidate), "note": notes.join("; "),
            })
        })
        .collect();
    json!({
        "reason": reason,
        "figures": figures,
        "pairs": shown,
        "more_pairs": pairs.len().checked_sub(SHOWN_PAIRS).filter(|more| *more > 0),
    })
}

fn chain(page: &StepPage<'_>, link: &dyn Fn(u64) -> String) -> Value {
    let release = &page.step.release;
    let made = |id: &ReleaseId| {
        page.steps
            .iter()
            .find(|step| step.release.release_id == *id && matches!(step.outcome.as_str(), "released" | "held"))
    };
    let other = |id: &ReleaseId, what: &str| {
        let found = made(id);
        json!({"release": id, "step": found.map(|step| step.step), "link": found.map(|step| link(step.step)), "what": what})
    };
    let children: Vec<Value> = page
        .steps
        .iter()
        .filter(|later| later.step != page.step.step && matches!(later.outcome.as_str(), "released" | "held"))
        .filter_map(|later| {
            let what = if later.release.target.as_ref() == Some(&release.release_id) {
                match later.operation {
                    Operation::Promote => "promoted by",
                    _ => "put back by",
                }
            } else if later.release.parent.as_ref() == Some(&release.release_id) {
                "followed by"
            } else {
                return None;
            };
            Some(json!({"what": what, "step": later.step, "link": link(later.step)}))
        })
        .collect();
    let target = match page.step.operation {
        Operation::Promote => "promotes",
        _ => "content of",
    };
    json!({
        "release": release.release_id,
        "parent": release.parent.as_ref().map(|id| other(id, "parent")),
        "target": release.target.as_ref().map(|id| other(id, target)),
        "children": children,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{ContentId, Outcome, PairedScore};
    use crate::experience::ReleaseRow;
    use crate::harness::tree::{Tree, diff};

    fn id(n: u8) -> ReleaseId {
        ReleaseId::new(format!("{n:040x}")).unwrap()
    }

    #[allow(clippy::needless_pass_by_value, reason = "a test hands over what it just wrote")]
    fn step(n: u8, operation: Operation, outcome: &str, metrics: Value) -> StepRow {
        StepRow {
            step: u64::from(n),
            release: ReleaseRow {
                release_id: id(n),
                parent: n.checked_sub(1).map(id),
                content_id: ContentId::new(format!("sha256:{}", "0".repeat(64))).unwrap(),
                kind: "harness-tree".to_owned(),
                bytes: 1,
                operation,
                sequence: u64::from(n),
                target: (operation == Operation::Promote).then(|| id(1)),
                state: ReleaseState::Released,
                restorable: true,
                at_us: 0,
                note: None,
            },
            operation,
            outcome: outcome.to_owned(),
            batch_id: None,
            base_release_id: None,
            high_water: 0,
            reason: None,
            metrics: metrics.as_object().unwrap().clone(),
            at_us: 1_777_593_600_000_000,
        }
    }

    fn page(steps: &[StepRow], at: usize, verdict: Option<&Verdict>, changes: &[EntryChange]) -> String {
        let row = json!({"metrics": steps[at].metrics});
        let page = StepPage {
            scenario: "team",
            steps,
            step: &steps[at],
            row: &row,
            head: &id(2),
            changes: Some(changes),
            verdict,
            attempt: None,
        };
        step_page(&page, &|step| {
            format!("/reef/harness/releases/{step}/page?scenario=team")
        })
        .unwrap()
    }

    #[test]
    fn a_page_says_why_what_and_with_which_evidence() {
        let asked = json!({
            "training_request": {"id": "r", "text": "Be kinder.", "requires": [{"name": "TOKEN_NAME", "kind": "env"}]},
            "proposal_notes": {"design": "A rule.", "review": {"covered": "all of it"}, "refused_requires": ["x: bad"]},
            "candidate_score": 2.5,
        });
        let steps = [
            step(0, Operation::Creation, "released", json!({})),
            step(1, Operation::Training, "held", asked),
            step(2, Operation::Promote, "released", json!({})),
        ];
        let tree =
            |text: &str| Tree::from_json(&json!([{"id": "a", "name": "rules", "config": {"text": text}}])).unwrap();
        let verdict = Verdict {
            outcome: Outcome::Selected,
            selector: "paired".to_owned(),
            reason: "Better on three tasks.".to_owned(),
            evaluator: "suite".to_owned(),
            pairs: vec![PairedScore {
                task: "sum".to_owned(),
                repeat: 0,
                candidate: Some(1.0),
                current: None,
                protected: true,
                failure: Some("timed out".to_owned()),
                ..PairedScore::default()
            }],
            figures: json!({"effect": 0.25}).as_object().unwrap().clone(),
        };
        let text = page(&steps, 1, Some(&verdict), &diff(&tree("one\n"), &tree("one\ntwo\n")));
        for part in [
            "Promoted at step 2",
            "Be kinder.",
            "A rule.",
            "all of it",
            "<span class=\"add\">+two</span>",
            "Better on three tasks.",
            "<td class=\"number\">0.25</td>",
            "protected; timed out",
            "TOKEN_NAME",
            "Refused: x: bad",
            "releases&#x2f;0&#x2f;page",
            "promoted by",
            "2.5",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(page(&steps, 0, None, &[]).contains("A creation is not evaluated."));
        assert!(page(&steps, 2, None, &[]).contains("Published, served now"));
    }

    #[test]
    fn nothing_others_wrote_can_act() {
        let hostile = "</script><img src=x onerror=alert(1)>";
        let steps = [step(
            1,
            Operation::Training,
            "rejected",
            json!({
                "training_request": {"text": hostile, "requires": [{"name": hostile, "kind": hostile, "check": hostile}]},
                "proposal_notes": {"design": hostile, "review": {hostile: hostile}},
                hostile: hostile,
            }),
        )];
        let tree = Tree::from_json(&json!([{"id": "a", "name": "rules", "config": {"text": hostile}}])).unwrap();
        let text = page(&steps, 0, None, &diff(&Tree::default(), &tree));
        assert!(!text.contains("<img") && text.matches("<script").count() == 1, "{text}");
        assert_eq!(text.matches("</script").count(), 1);
        assert!(text.contains("Not selected"));
    }
}
