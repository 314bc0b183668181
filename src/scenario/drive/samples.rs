//! From the samples of a batch to what a trainer reads: tokens where the engine captured them, and the text of each turn.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::domain::{RecordId, ScenarioName, TokenCapture};
use crate::experience::{Experience, Record, StoreError};
use crate::recipe::Recipe;
use crate::scenario::processor::{Assembled, Assembly, Exclusion, Sample, assemble};
use crate::sys::json::read_or_text;

/// One sample with its bodies.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub tokens: Option<Assembled>,
    pub turns: Vec<Value>,
}

/// Reads one sample. Blocking.
pub(super) fn load(
    experience: &Experience,
    scenario: &ScenarioName,
    recipe: &Recipe,
    sample: &Sample,
) -> Result<Result<Loaded, Exclusion>, StoreError> {
    let spec = &recipe.processor;
    let mut records = Vec::with_capacity(sample.sources.len());
    for id in &sample.sources {
        match whole(experience, scenario, id)? {
            Some(record) => records.push(record),
            None => return Ok(Err(Exclusion::SourcePruned)),
        }
    }
    let captures: Option<Vec<&TokenCapture>> = records
        .iter()
        .map(|record| record.bodies.as_ref().and_then(|bodies| bodies.capture.as_ref()))
        .collect();
    let tokens = match captures {
        Some(captures) => match assemble(&captures, Assembly::of(recipe)) {
            Ok(tokens) => Some(tokens),
            Err(why) if spec.tokens => return Ok(Err(why)),
            Err(_) => None,
        },
        None if spec.tokens => return Ok(Err(Exclusion::NoTokens)),
        None => None,
    };
    let turns = records.iter().map(turn).collect();
    Ok(Ok(Loaded { tokens, turns }))
}

fn whole(experience: &Experience, scenario: &ScenarioName, id: &RecordId) -> Result<Option<Record>, StoreError> {
    Ok(experience
        .record(Some(scenario), id)?
        .filter(|record| record.bodies.is_some()))
}

fn turn(record: &Record) -> Value {
    let bodies = record.bodies.as_ref();
    let request = bodies.map_or(Value::Null, |bodies| read_or_text(&bodies.request));
    json!({
        "id": record.row.id,
        "route": record.row.route.map(|route| route.path()),
        "release_id": record.row.release.as_ref().map(|release| &release.release_id),
        "request": request,
        "response": bodies.and_then(|bodies| bodies.turn.as_ref()),
    })
}

/// The line of a sample in a batch file.
pub(super) fn line(index: usize, sample: &Sample, loaded: &Loaded) -> Value {
    let tokens = loaded.tokens.as_ref().map(|tokens| {
        json!({
            "prompt": tokens.prompt,
            "response": tokens.response,
            "loss_mask": tokens.loss_mask.iter().map(|&trained| u8::from(trained)).collect::<Vec<_>>(),
            "log_probs": tokens.log_probs,
            "spans": tokens.spans,
            "temperature": tokens.temperature,
        })
    });
    json!({
        "index": index,
        "sources": sample.sources,
        "report": sample.report,
        "session": sample.session,
        "group": sample.group,
        "reward": sample.reward,
        "feedback": sample.feedback,
        "truncated": sample.truncated,
        "turns": loaded.turns,
        "tokens": tokens,
    })
}

/// Writes a batch file, whole or not at all. Blocking.
pub(super) fn write(path: &Path, lines: &[Value]) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut bytes, line)?;
        bytes.write_all(b"\n")?;
    }
    crate::sys::durable::write(path, &bytes)
}
