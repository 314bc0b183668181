//! From the store into the pool: what was reported since the last look, each report judged once.

use std::collections::HashMap;

use super::LoopError;
use crate::domain::{RecordId, RequestType, ScenarioName};
use crate::experience::{Experience, Record, RecordQuery, RecordRow};
use crate::recipe::{ProcessorKind, Recipe};
use crate::scenario::processor::{Exclusion, Pool, Sample, admit_demonstration, admit_report};

/// Records read at a time.
const PAGE: usize = 256;

/// What one look found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Records that will never train, with the reason.
    pub excluded: Vec<(RecordId, &'static str)>,
    /// The last sequence read.
    pub cursor: i64,
}

/// Reads everything new into the pool. Blocking.
pub(super) fn collect(
    experience: &Experience,
    scenario: &ScenarioName,
    recipe: &Recipe,
    consumer: &str,
    pool: &mut Pool,
    mut cursor: i64,
) -> Result<Found, LoopError> {
    let mut found = Found::default();
    let kind = match recipe.processor.kind {
        ProcessorKind::None => return Ok(Found { cursor, ..found }),
        ProcessorKind::Demonstration => RequestType::Inference,
        ProcessorKind::Reported | ProcessorKind::Grouped | ProcessorKind::Computed => RequestType::Report,
    };
    loop {
        let query = RecordQuery {
            scenario: Some(scenario.clone()),
            kind: Some(kind),
            cursor: Some(cursor),
            limit: PAGE,
            not_consumed_by: Some(consumer.to_owned()),
            ..RecordQuery::default()
        };
        let n = if kind == RequestType::Inference {
            let page = experience.records(&query)?;
            for row in &page {
                cursor = row.sequence;
                let admitted = admit_demonstration(&recipe.processor, row);
                take(pool, &mut found, &row.id, admitted);
            }
            page.len()
        } else {
            let page = experience.full_records(&query)?;
            for report in &page {
                cursor = report.row.sequence;
                let admitted = judge(experience, scenario, recipe, consumer, pool, report)?;
                take(pool, &mut found, &report.row.id, admitted);
            }
            page.len()
        };
        found.cursor = cursor;
        if n < PAGE {
            return Ok(found);
        }
    }
}

fn judge(
    experience: &Experience,
    scenario: &ScenarioName,
    recipe: &Recipe,
    consumer: &str,
    pool: &Pool,
    report: &Record,
) -> Result<Result<Sample, Exclusion>, LoopError> {
    let references = &report.row.references;
    let mut rows: HashMap<RecordId, RecordRow> = experience.record_rows(scenario, references)?;
    let used = experience.used(scenario, consumer, references)?;
    let sources: Vec<Option<RecordRow>> = references.iter().map(|id| rows.remove(id)).collect();
    Ok(admit_report(
        &recipe.processor,
        report,
        &sources,
        |id| used.contains(id),
        |id| pool.holds(id),
    ))
}

fn take(pool: &mut Pool, found: &mut Found, id: &RecordId, admitted: Result<Sample, Exclusion>) {
    match admitted {
        Ok(sample) => {
            let displaced = pool.push(sample);
            found
                .excluded
                .extend(displaced.iter().filter_map(|(sample, why)| excluded(sample, *why)));
        }
        Err(why) => found.excluded.push((id.clone(), why.as_str())),
    }
}

/// What is marked when a sample is excluded: its report, so that another report may still grade the exchange; the
/// exchange itself where nothing else stands for the sample.
pub(super) fn excluded(sample: &Sample, why: Exclusion) -> Option<(RecordId, &'static str)> {
    let id = sample.report.as_ref().or(sample.sources.first())?;
    Some((id.clone(), why.as_str()))
}
