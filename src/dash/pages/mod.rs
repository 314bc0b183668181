//! Pages for a browser: one file each, nothing fetched from anywhere.

mod svg;

use std::collections::BTreeMap;

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value as Page, context};
use serde_json::{Value, json};

use self::svg::{Kind, Series, chart, pair};
use super::page::mark;
use super::series::{FIGURES, series};
use super::snapshot::{Evidence, Focus, RecordFacts, ScenarioFacts, Snapshot, StepFacts};
use super::source::Fault;
use super::text;
use crate::domain::{Outcome, Verdict, is_score};
use crate::sys::terminal;

/// Steps drawn.
const STEPS: usize = 2000;
/// Columns of a chart over time.
const SLOTS: i64 = 120;

/// The templates; the base is that of the pages of harness updates.
const TEMPLATES: [(&str, &str); 5] = [
    ("base.html", include_str!("../../../templates/pages/base.html")),
    ("charts.html", include_str!("../../../templates/pages/charts.html")),
    ("records.html", include_str!("../../../templates/pages/records.html")),
    ("training.html", include_str!("../../../templates/pages/training.html")),
    ("chain.html", include_str!("../../../templates/pages/chain.html")),
];

fn render(name: &str, page: Page) -> Result<String, Fault> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    for (name, text) in TEMPLATES {
        environment
            .add_template(name, text)
            .map_err(|error| Fault::of(&error))?;
    }
    let page = environment
        .get_template(name)
        .and_then(|template| template.render(page))
        .map_err(|error| Fault::of(&error))?;
    // Escaped as HTML, words from outside can still turn the direction of writing, or act where a terminal shows the file.
    Ok(terminal::lines(&page).into_owned())
}

fn by_step(x: f64) -> String {
    format!("step {x:.0}")
}

fn by_time(x: f64) -> String {
    text::moment((x * 1e6) as i64)
}

/// A report on training: the figures of every step, what the gate said, what was left out. Evidence is shown where it is
/// given.
pub fn training_page(snapshot: &Snapshot, scenarios: &[(Focus, Vec<Evidence>)]) -> Result<String, Fault> {
    let sections: Vec<Value> = scenarios
        .iter()
        .map(|(focus, evidence)| {
            let facts = snapshot.scenarios.iter().find(|facts| facts.name == focus.scenario);
            training(facts, focus, evidence)
        })
        .collect();
    render(
        "training.html",
        context! {
            title => "Training",
            scenario => "Reef",
            made => text::moment(snapshot.at_us),
            source => snapshot.source.clone(),
            sections => Serde(&sections),
        },
    )
}

fn training(facts: Option<&ScenarioFacts>, focus: &Focus, evidence: &[Evidence]) -> Value {
    let charts: Vec<Value> = FIGURES
        .iter()
        .filter_map(|figure| {
            let points = series(&focus.steps, figure, STEPS, 0);
            let svg = chart(
                figure.name,
                &[Series {
                    name: figure.name,
                    kind: Kind::Line,
                    points: points.clone(),
                }],
                &by_step,
            );
            (!points.is_empty()).then(|| json!({"name": figure.name, "svg": svg}))
        })
        .collect();
    let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
    for step in focus.steps.iter().filter(|step| step.batch.is_some()) {
        *outcomes.entry(step.became()).or_default() += 1;
    }
    let mut left_out: Vec<(&String, &u64)> = facts.map(|facts| facts.excluded.iter().collect()).unwrap_or_default();
    left_out.sort_by(|a, b| b.1.cmp(a.1));
    json!({
        "scenario": focus.scenario,
        "release": facts.and_then(|facts| facts.release.clone()),
        "outcomes": outcomes.iter().map(|(outcome, count)| json!({"mark": mark(outcome), "outcome": outcome, "count": count})).collect::<Vec<_>>(),
        "charts": charts,
        "left_out": left_out,
        "steps": focus.steps.iter().map(|step| row(step, facts, evidence)).collect::<Vec<_>>(),
    })
}

/// The chain of a scenario, newest first, with the evidence of each step.
pub fn chain_page(snapshot: &Snapshot, focus: &Focus, evidence: &[Evidence]) -> Result<String, Fault> {
    let facts = snapshot.scenarios.iter().find(|facts| facts.name == focus.scenario);
    let steps: Vec<Value> = focus.steps.iter().map(|step| row(step, facts, evidence)).collect();
    render(
        "chain.html",
        context! {
            title => "Releases",
            of => focus.scenario.clone(),
            made => text::moment(snapshot.at_us),
            source => snapshot.source.clone(),
            scenario => focus.scenario.clone(),
            steps => Serde(&steps),
        },
    )
}

/// A step as a row of a page.
fn row(step: &StepFacts, facts: Option<&ScenarioFacts>, evidence: &[Evidence]) -> Value {
    let served = facts.and_then(|facts| facts.release.as_deref()) == Some(step.release.as_str());
    let made = step.made_release();
    let state = match step.became() {
        "released" if served => "served",
        other => other,
    };
    let verdict = evidence
        .iter()
        .find(|evidence| evidence.step == step.step)
        .and_then(|evidence| evidence.verdict.as_ref());
    let figures: Vec<Value> = step
        .metrics
        .iter()
        .map(|(name, value)| json!({"name": name, "value": text::figure(*value)}))
        .collect();
    json!({
        "step": step.step,
        "mark": mark(state.trim_start_matches("served")),
        "state": state,
        "made": made,
        "release": step.release,
        "short": text::short(&step.release),
        "parent": step.parent,
        "operation": step.operation,
        "kind": step.kind,
        "bytes": text::bytes(step.bytes),
        "when": if step.at_us > 0 { text::moment(step.at_us) } else { String::new() },
        "reason": step.reason,
        "note": step.note,
        "asked": step.asked,
        "target": step.target,
        "batch": step.batch,
        "figures": figures,
        "verdict": verdict.map(self::verdict),
    })
}

fn verdict(verdict: &Verdict) -> Value {
    let scores = verdict.pairs.iter().flat_map(|pair| [pair.candidate, pair.current]);
    let most = scores.flatten().fold(0.0, f64::max);
    let pairs: Vec<Value> = verdict
        .pairs
        .iter()
        .map(|pair| {
            let word = match (pair.candidate, pair.current) {
                (Some(a), Some(b)) if a > b => "won",
                (Some(a), Some(b)) if a < b => "lost",
                (Some(_), Some(_)) => "tied",
                _ => "invalid",
            };
            json!({
                "task": pair.task,
                "repeat": pair.repeat + 1,
                "protected": pair.protected,
                "candidate": pair.candidate.map(text::figure),
                "current": pair.current.map(text::figure),
                "word": word,
                "failure": pair.failure,
                "svg": self::pair(pair.candidate, pair.current, most),
            })
        })
        .collect();
    json!({
        "outcome": decision(verdict.outcome),
        "selector": verdict.selector,
        "evaluator": verdict.evaluator,
        "figures": verdict.figures.iter().map(|(name, value)| json!({
            "name": name, "value": text::figures(value),
        })).collect::<Vec<_>>(),
        "pairs": pairs,
    })
}

/// What the gate decided, in words that agree with what became of the step: one that was not decided is not released.
fn decision(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Selected => "passed",
        Outcome::Rejected => "rejected",
        Outcome::Inconclusive => "not decided, and so not released,",
        Outcome::Invalid => "not measured",
        Outcome::Held => "left to a person",
    }
}

/// What was recorded, over time; `records` is newest first.
pub fn records_page(snapshot: &Snapshot, scenarios: &[(String, Vec<RecordFacts>)]) -> Result<String, Fault> {
    let sections: Vec<Value> = scenarios
        .iter()
        .map(|(name, records)| {
            let facts = snapshot.scenarios.iter().find(|facts| facts.name == *name);
            section(name, facts, records)
        })
        .collect();
    render(
        "records.html",
        context! {
            title => "Records",
            scenario => "Reef",
            made => text::moment(snapshot.at_us),
            source => snapshot.source.clone(),
            sections => Serde(&sections),
        },
    )
}

fn section(name: &str, facts: Option<&ScenarioFacts>, records: &[RecordFacts]) -> Value {
    let exchanges: Vec<&RecordFacts> = records.iter().filter(|row| row.kind == "inference").collect();
    let scored: Vec<(f64, f64)> = records
        .iter()
        .rev()
        .filter_map(|row| Some((row.at_us as f64 / 1e6, row.score.filter(|score| is_score(*score))?)))
        .collect();
    let (first, last) = (
        records.last().map_or(0, |row| row.at_us),
        records.first().map_or(0, |row| row.at_us),
    );
    let slot = ((last - first) / SLOTS).max(1_000_000);
    let counted = |pick: &dyn Fn(&RecordFacts) -> f64, rows: &[&RecordFacts]| -> Vec<(f64, f64)> {
        let mut slots: BTreeMap<i64, f64> = BTreeMap::new();
        for row in rows {
            *slots.entry((row.at_us - first) / slot).or_default() += pick(row);
        }
        slots
            .iter()
            .map(|(at, sum)| ((first + at * slot + slot / 2) as f64 / 1e6, *sum))
            .collect()
    };
    let reports: Vec<&RecordFacts> = records.iter().filter(|row| row.kind == "report").collect();
    let bars = |name, points| Series {
        name,
        kind: Kind::Bars,
        points,
    };
    let traffic = [
        bars("exchanges", counted(&|_| 1.0, &exchanges)),
        bars("reports", counted(&|_| 1.0, &reports)),
    ];
    let tokens = [bars(
        "generated tokens",
        counted(&|row| row.output_tokens.unwrap_or(0) as f64, &exchanges),
    )];
    let took = [Series {
        name: "seconds",
        kind: Kind::Dots,
        points: exchanges
            .iter()
            .rev()
            .filter_map(|row| Some((row.at_us as f64 / 1e6, row.total_us.filter(|us| *us > 0)? as f64 / 1e6)))
            .collect(),
    }];
    let score = [
        Series {
            name: "score of a report",
            kind: Kind::Dots,
            points: scored.clone(),
        },
        Series {
            name: "mean of the last 25",
            kind: Kind::Line,
            points: moving_mean(&scored, 25),
        },
    ];
    let charts: Vec<Value> = [
        ("records over time", chart("records over time", &traffic, &by_time)),
        ("score", chart("score", &score, &by_time)),
        (
            "duration of an exchange, seconds",
            chart("duration of an exchange", &took, &by_time),
        ),
        (
            "generated tokens over time",
            chart("generated tokens over time", &tokens, &by_time),
        ),
    ]
    .into_iter()
    .map(|(name, svg)| json!({"name": name, "svg": svg}))
    .collect();
    json!({
        "scenario": name,
        "shown": records.len(),
        "exchanges": facts.map(|facts| facts.exchanges),
        "reports": facts.map(|facts| facts.reports),
        "score": facts.and_then(|facts| facts.mean_score).map(text::figure),
        "input_tokens": facts.map(|facts| text::count(facts.input_tokens)),
        "output_tokens": facts.map(|facts| text::count(facts.output_tokens)),
        "interrupted": facts.map(|facts| facts.interrupted),
        "charts": charts,
    })
}

fn moving_mean(points: &[(f64, f64)], window: usize) -> Vec<(f64, f64)> {
    (0..points.len())
        .map(|at| {
            let part = &points[(at + 1).saturating_sub(window)..=at];
            (
                points[at].0,
                part.iter().map(|(_, y)| y).sum::<f64>() / part.len() as f64,
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dash::sample;

    fn nothing_is_fetched(page: &str) {
        for word in ["http://", "https://", "src=", "@import", "url(", "<script", "<link"] {
            // Where the data comes from may be a URL; it is text.
            let page = page.replace("http://www.w3.org", "");
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.starts_with("<!doctype html>") && page.contains("<svg"));
    }

    #[test]
    fn pages_hold_their_data_fetch_nothing_and_escape_what_came_from_outside() {
        let snapshot = sample::snapshot();
        let mut focus = snapshot.focus.clone().unwrap();
        focus.steps[1].reason = Some("</td><script>alert(1)</script>\u{1b}]0;x\u{7}\u{9b}2J\r\u{202e}".to_owned());
        let evidence = vec![sample::evidence()];
        let chain = chain_page(&snapshot, &focus, &evidence).unwrap();
        assert!(
            chain.contains("&lt;script&gt;") && chain.contains("ticket-07") && chain.contains(&focus.steps[0].release)
        );
        let report = training_page(&snapshot, &[(focus.clone(), evidence)]).unwrap();
        assert!(report.contains("gradient norm") && report.contains("no_score"));
        let records = records_page(&snapshot, &[(focus.scenario.clone(), focus.records)]).unwrap();
        assert!(records.contains("mean of the last 25"));
        for page in [&report, &records] {
            nothing_is_fetched(page);
        }
        assert!(!chain.contains("<script"));
        let acting = |c: char| terminal::acts(c) && !matches!(c, '\n' | '\t');
        for page in [&chain, &report, &records] {
            assert!(!page.contains(acting), "{:?}", page.find(acting));
        }
        assert!(chain.contains("\\u{1b}]0;x\\u{7}\\u{9b}2J\\r\\u{202e}"));
    }

    #[test]
    fn a_moving_mean_starts_with_what_there_is() {
        let points = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)];
        assert_eq!(moving_mean(&points, 2), [(0.0, 1.0), (1.0, 2.0), (2.0, 4.0)]);
    }
}
