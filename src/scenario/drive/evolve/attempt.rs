//! The record of an attempt, kept beside its job: what was done, and how it ended.

use serde_json::{Map, Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::domain::{BatchId, Outcome, ReleaseId};
use crate::experience::{AttemptChange, AttemptState, Experience, Job, NewAttempt, ProposalState};
use crate::scenario::drive::seal::Manifest;
use crate::scenario::drive::{Driver, LoopError};
use crate::sys::task::{self, Task};

/// Takes notes from places that cannot wait, and writes them down in order.
pub(super) struct Journal {
    send: Option<UnboundedSender<(&'static str, String, bool)>>,
    writing: Option<Task<()>>,
}

impl Journal {
    pub(super) fn open(experience: Experience, batch: &BatchId) -> Self {
        let (send, mut receive) = unbounded_channel::<(&'static str, String, bool)>();
        let id = batch.as_str().to_owned();
        let writing = task::spawn("noting an attempt", async move {
            while let Some((kind, text, failed)) = receive.recv().await {
                // Notes are for whoever watches; the step does not depend on them.
                if let Err(error) = experience.attempt_event(id.clone(), kind, text, failed).await {
                    tracing::warn!(%error, "what an attempt did could not be noted");
                }
            }
        });
        Self {
            send: Some(send),
            writing: Some(writing),
        }
    }

    pub(super) fn note(&self, kind: &'static str, text: impl Into<String>, failed: bool) {
        if let Some(send) = &self.send {
            let _closed = send.send((kind, text.into(), failed));
        }
    }

    /// Waits until everything noted is written.
    pub(super) async fn close(mut self) {
        self.send = None;
        if let Some(writing) = self.writing.take() {
            let _ended = writing.await;
        }
    }
}

impl Driver {
    pub(super) async fn attempt_begin(&self, job: &Job, manifest: &Manifest) -> Result<(), LoopError> {
        let source = match (&manifest.proposal, &manifest.recheck, &job.instruction) {
            (Some(_), _, _) => "proposal",
            (None, Some(_), _) => "recheck",
            (None, None, Some(_)) => "instruction",
            (None, None, None) => "failures",
        };
        let request = manifest
            .proposal
            .clone()
            .or_else(|| manifest.recheck.as_ref().map(ToString::to_string))
            .or_else(|| job.instruction.as_ref().map(ToString::to_string));
        self.experience()
            .attempt_begin(NewAttempt {
                id: job.batch.to_string(),
                scenario: job.scenario.clone(),
                source,
                request,
                base: job.base.clone(),
            })
            .await?;
        Ok(())
    }

    pub(super) async fn attempt_is(&self, job: &Job, state: AttemptState) -> Result<(), LoopError> {
        self.attempt_note(
            job,
            AttemptChange {
                state: Some(state),
                ..AttemptChange::default()
            },
        )
        .await
    }

    pub(in crate::scenario::drive) async fn attempt_note(
        &self,
        job: &Job,
        change: AttemptChange,
    ) -> Result<(), LoopError> {
        self.experience().attempt_change(job.batch.to_string(), change).await?;
        Ok(())
    }

    /// Records the end of a step with its attempt and its proposal. Steps of other recipes have neither.
    pub(in crate::scenario::drive) async fn attempt_ended(
        &self,
        job: &Job,
        state: AttemptState,
        step: Option<u64>,
        release: Option<ReleaseId>,
        reason: &str,
    ) -> Result<(), LoopError> {
        if !self.evolves() {
            return Ok(());
        }
        let manifest = Manifest::of(job)?;
        // A step that ended before its proposer was asked has no attempt yet.
        self.attempt_begin(job, &manifest).await?;
        let mut notes = Map::new();
        if let Some(verdict) = &job.verdict {
            let failing: std::collections::BTreeSet<&str> = verdict
                .pairs
                .iter()
                .filter(|pair| {
                    pair.candidate
                        .is_some_and(|score| pair.current.is_some_and(|now| score < now))
                })
                .map(|pair| pair.task.as_str())
                .collect();
            notes.insert("failing".to_owned(), json!(failing));
            notes.insert(
                "verdict".to_owned(),
                json!({
                    "outcome": verdict.outcome.as_str(), "reason": verdict.reason, "figures": verdict.figures,
                }),
            );
        }
        self.attempt_note(
            job,
            AttemptChange {
                state: Some(state),
                step,
                release,
                outcome: Some(reason.to_owned()),
                notes,
                ..AttemptChange::default()
            },
        )
        .await?;
        if manifest.recheck.is_some() && state == AttemptState::Published {
            self.mark_rolled_back(job).await?;
        }
        if let Some(proposal) = manifest.proposal {
            let words = format!("{}: {reason}", state.as_str());
            self.experience()
                .proposal_set(proposal, ProposalState::Settled, Some(words))
                .await?;
        }
        Ok(())
    }

    /// The same for a step that an earlier process recorded before it died.
    pub(in crate::scenario::drive) async fn attempt_recovered(&self, job: &Job) -> Result<(), LoopError> {
        if !self.evolves() {
            return Ok(());
        }
        let (name, batch) = (job.scenario.clone(), job.batch.clone());
        let (made, stored) = self
            .read(move |experience| {
                Ok((
                    experience.release_of_batch(&name, &batch)?,
                    experience.attempt(&name, batch.as_str())?,
                ))
            })
            .await?;
        // It died after it had written this end, which stands; what follows from it may be missing.
        if let Some(ended) = stored.filter(|attempt| attempt.state.is_settled()) {
            let reason = ended.outcome.unwrap_or_default();
            return self
                .attempt_ended(job, ended.state, ended.step, ended.release, &reason)
                .await;
        }
        let held = job
            .verdict
            .as_ref()
            .is_some_and(|verdict| verdict.outcome == Outcome::Held);
        let (state, step, release) = match made {
            Some((step, release)) if held => (AttemptState::Held, Some(step), Some(release)),
            Some((step, release)) => (AttemptState::Published, Some(step), Some(release)),
            None if job.verdict.is_some() => (AttemptState::Rejected, Some(job.step), None),
            None => (AttemptState::Skipped, Some(job.step), None),
        };
        let reason = job.verdict.as_ref().map_or_else(
            || "settled by an earlier process".to_owned(),
            |verdict| verdict.reason.clone(),
        );
        self.attempt_ended(job, state, step, release, &reason).await
    }

    /// Whether the recipe evolves a harness tree.
    pub(in crate::scenario::drive) fn evolves(&self) -> bool {
        self.inner.recipe.trainer.backend == crate::recipe::TrainerKind::Proposer
    }
}

/// Figures of what was spent, for the step.
pub(super) fn spend_figures(spent: &crate::experience::Spend, metrics: &mut Map<String, Value>) {
    metrics.insert("model_calls".into(), json!(spent.calls));
    metrics.insert("tokens".into(), json!(spent.tokens));
    if spent.cost > 0.0 {
        metrics.insert("cost".into(), json!(spent.cost));
    }
}
