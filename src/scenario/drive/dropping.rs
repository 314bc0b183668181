//! Giving up a step that cannot end by itself, whatever stands in its way. Its batch is used up by a skipped step, so
//! that it is not begun again; a process that still works on it finds it ended.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::seal::Manifest;
use super::settle::chain_of;
use super::{CONSUMER, LoopError, folder};
use crate::domain::{BatchId, ScenarioName};
use crate::experience::{AttemptChange, AttemptState, BatchUse, Job, ProposalState, UnreleasedStep};
use crate::scenario::Publisher;
use crate::sys::task;

/// A step that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Its number.
    pub step: u64,
    /// Its batch.
    pub batch: BatchId,
    /// Why, as it is recorded.
    pub reason: String,
}

/// Gives up the step in progress of a scenario; `None` where there is none. `work` is where the loop keeps its files.
pub async fn drop_step(
    publisher: &Publisher,
    work: &Path,
    scenario: &ScenarioName,
    why: Option<&str>,
) -> Result<Option<Dropped>, LoopError> {
    // A publication that a dead process left decides first. A chain that cannot be read is no reason to stay stuck.
    if let Err(error) = publisher.sync(scenario).await {
        tracing::warn!(%scenario, error = chain_of(&error), "the chain cannot be looked at");
    }
    let name = scenario.clone();
    let Some(job) = publisher.reading(move |experience| experience.open_job(&name)).await? else {
        return Ok(None);
    };
    let experience = publisher.experience();
    let (name, batch) = (scenario.clone(), job.batch.clone());
    if publisher
        .reading(move |experience| experience.batch_has_step(&name, &batch))
        .await?
    {
        let reason = "it had ended already".to_owned();
        experience.job_end(job.id, "settled", reason.clone()).await?;
        return Ok(Some(Dropped {
            step: job.step,
            batch: job.batch,
            reason,
        }));
    }
    let reason = match (why, &job.error) {
        (Some(why), _) => format!("dropped: {why}"),
        (None, Some(error)) => format!("dropped after {} failed attempts: {error}", job.attempts),
        (None, None) => "dropped".to_owned(),
    };
    let manifest = Manifest::of(&job).ok();
    let step = experience
        .record_step(
            scenario.clone(),
            UnreleasedStep {
                rejected: false,
                head: job.base.clone(),
                batch: Some(batch_of(&job, manifest.as_ref())),
                metrics: figures(&job, &reason),
                verdict: job.verdict.clone(),
            },
        )
        .await?;
    experience
        .attempt_change(
            job.batch.to_string(),
            AttemptChange {
                state: Some(AttemptState::Skipped),
                step: Some(step),
                outcome: Some(reason.clone()),
                ..AttemptChange::default()
            },
        )
        .await?;
    if let Some(proposal) = manifest.and_then(|manifest| manifest.proposal) {
        let words = format!("skipped: {reason}");
        experience
            .proposal_set(proposal, ProposalState::Settled, Some(words))
            .await?;
    }
    experience.job_end(job.id, "dropped", reason.clone()).await?;
    let dir = work.join(scenario.as_str()).join(folder::name(job.step, &job.batch));
    let removed = task::blocking("removing files of a step", move || std::fs::remove_dir_all(dir)).await;
    if let Ok(Err(error)) = removed
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%scenario, %error, "files of the step stay behind; the next start removes them");
    }
    Ok(Some(Dropped {
        step,
        batch: job.batch,
        reason,
    }))
}

/// What the step uses up: of an instruction that failed the instruction alone, as what rode along is as good as before.
fn batch_of(job: &Job, manifest: Option<&Manifest>) -> BatchUse {
    let records = match (&job.instruction, manifest) {
        (Some(instruction), _) => vec![instruction.clone()],
        (None, Some(manifest)) => manifest.records(None),
        (None, None) => Vec::new(),
    };
    BatchUse {
        batch_id: job.batch.clone(),
        consumer: CONSUMER.to_owned(),
        records,
    }
}

fn figures(job: &Job, reason: &str) -> Map<String, Value> {
    let mut metrics = job
        .candidate
        .as_ref()
        .and_then(|candidate| candidate["metrics"].as_object().cloned())
        .unwrap_or_default();
    metrics.insert("skipped".into(), json!(reason));
    if let Some(error) = &job.error {
        metrics.insert("error".into(), json!(error));
    }
    metrics
}
