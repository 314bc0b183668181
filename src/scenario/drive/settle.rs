//! The ends of a step: released, refused, skipped, dropped. What is durable comes first, files go last.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::seal::{Manifest, hit};
use super::{CONSUMER, Driver, Ended, LoopError, Turn, folder};
use crate::domain::{Operation, Outcome, RecordId, ReleaseId, ScenarioName};
use crate::experience::{AttemptChange, AttemptState, BatchUse, Consumption, Job, UnreleasedStep};
use crate::release::{Component, Provenance, Source, TrainingState};
use crate::scenario::{Candidate, PublishError};

impl Driver {
    pub(super) async fn publish(&self, job: &Job, manifest: &Manifest, held: bool) -> Result<Turn, LoopError> {
        let metrics = self.step_metrics(job, manifest);
        hit("loop::before_publish")?;
        let published = self
            .inner
            .publisher
            .publish(Candidate {
                scenario: job.scenario.clone(),
                dir: self.job_dir(job).join("candidate"),
                components: self.components(),
                expected: job.base.clone(),
                operation: Operation::Training,
                held,
                source: Source::Training,
                provenance: Provenance {
                    batch_id: Some(job.batch.clone()),
                    recipe: Some(job.recipe.clone()),
                    recipe_digest: Some(self.inner.recipe_digest.clone()),
                    step: Some(job.step),
                    seed: Some(seed_of(job)),
                    metrics: metrics.clone(),
                    verdict: job.verdict.clone(),
                    ..Provenance::default()
                },
                batch: Some(self.batch_use(job, manifest)),
            })
            .await?;
        hit("loop::before_load")?;
        let not_live = if held {
            None
        } else {
            self.inner.live.follow(&job.scenario).await.err()
        };
        hit("loop::before_end")?;
        let outcome = if held { "held" } else { "released" };
        let reason = job
            .verdict
            .as_ref()
            .map(|verdict| verdict.reason.clone())
            .unwrap_or_default();
        let state = if held {
            AttemptState::Held
        } else {
            AttemptState::Published
        };
        let made = Some(published.release_id.clone());
        self.attempt_ended(job, state, published.step, made, &reason).await?;
        self.experience().job_end(job.id, outcome, reason.clone()).await?;
        self.carry(job).await?;
        self.discard(job).await?;
        Ok(Turn::Ended(Box::new(Ended {
            step: published.step,
            batch: job.batch.clone(),
            outcome,
            reason,
            release: Some(published.release_id),
            metrics,
            not_live,
        })))
    }

    /// What a candidate consists of, where its recipe says so; elsewhere its look decides.
    pub(super) fn components(&self) -> Option<BTreeMap<String, Component>> {
        self.evolves().then(crate::scenario::harness_component)
    }

    /// The batch has its step already: the process ended between the step and the end of the job.
    pub(super) async fn close(&self, job: &Job) -> Result<Option<Turn>, LoopError> {
        self.experience()
            .job_end(job.id, "settled", "settled by an earlier process".to_owned())
            .await?;
        self.discard(job).await?;
        Ok(None)
    }

    pub(super) async fn drop_stale(
        &self,
        job: &Job,
        manifest: &Manifest,
        reason: &'static str,
    ) -> Result<Option<Turn>, LoopError> {
        let records = manifest.records(None);
        let n_records = records.len();
        self.experience()
            .consume(Consumption {
                scenario: job.scenario.clone(),
                consumer: CONSUMER.to_owned(),
                batch: job.batch.clone(),
                step: None,
                outcome: format!("stale:{reason}"),
                records,
            })
            .await?;
        hit("loop::after_stale")?;
        if self.evolves() {
            let change = AttemptChange {
                state: Some(AttemptState::Skipped),
                outcome: Some(format!("its batch went stale: {reason}")),
                ..AttemptChange::default()
            };
            self.attempt_note(job, change).await?;
        }
        self.experience().job_end(job.id, "stale", reason.to_owned()).await?;
        self.discard(job).await?;
        let mut metrics = Map::new();
        metrics.insert("staleness/samples_dropped".into(), json!(manifest.train.len()));
        metrics.insert("staleness/records_dropped".into(), json!(n_records));
        metrics.insert("staleness/drop_reason".into(), json!(reason));
        Ok(Some(Turn::Ended(Box::new(Ended {
            step: None,
            batch: job.batch.clone(),
            outcome: "stale",
            reason: reason.to_owned(),
            release: None,
            metrics,
            not_live: None,
        }))))
    }

    pub(super) async fn give_up(&self, job: &Job, manifest: &Manifest) -> Result<Option<Turn>, LoopError> {
        let error = job.error.clone().unwrap_or_default();
        let mut metrics = self.step_metrics(job, manifest);
        let reason = if job.instruction.is_some() {
            "instruction failed".to_owned()
        } else {
            format!("failed {} times", job.attempts)
        };
        metrics.insert("skipped".into(), json!(reason));
        metrics.insert("error".into(), json!(error));
        let given_up = Unreleased {
            rejected: false,
            outcome: "skipped",
            reason: format!("{reason}: {error}"),
            metrics,
        };
        // What rode along with an instruction is as good as before; only the instruction is used up.
        let only = job.instruction.clone().map(|id| vec![id]);
        self.record(job, manifest, given_up, only).await
    }

    /// Records a step that released nothing and ends the job.
    pub(super) async fn record(
        &self,
        job: &Job,
        manifest: &Manifest,
        unreleased: Unreleased,
        only: Option<Vec<RecordId>>,
    ) -> Result<Option<Turn>, LoopError> {
        let mut batch = self.batch_use(job, manifest);
        if let Some(only) = only {
            batch.records = only;
        }
        hit("loop::before_record")?;
        let step = self
            .experience()
            .record_step(
                job.scenario.clone(),
                UnreleasedStep {
                    rejected: unreleased.rejected,
                    head: job.base.clone(),
                    batch: Some(batch),
                    metrics: unreleased.metrics.clone(),
                    verdict: job.verdict.clone(),
                },
            )
            .await?;
        hit("loop::after_record")?;
        let state = if unreleased.rejected {
            AttemptState::Rejected
        } else {
            AttemptState::Skipped
        };
        self.attempt_ended(job, state, Some(step), None, &unreleased.reason)
            .await?;
        self.experience()
            .job_end(job.id, unreleased.outcome, unreleased.reason.clone())
            .await?;
        self.carry(job).await?;
        self.discard(job).await?;
        Ok(Some(Turn::Ended(Box::new(Ended {
            step: Some(step),
            batch: job.batch.clone(),
            outcome: unreleased.outcome,
            reason: unreleased.reason,
            release: None,
            metrics: unreleased.metrics,
            not_live: None,
        }))))
    }

    pub(super) fn batch_use(&self, job: &Job, manifest: &Manifest) -> BatchUse {
        BatchUse {
            batch_id: job.batch.clone(),
            consumer: CONSUMER.to_owned(),
            records: manifest.records(job.instruction.as_ref()),
        }
    }

    pub(super) fn step_metrics(&self, job: &Job, manifest: &Manifest) -> Map<String, Value> {
        let mut metrics: Map<String, Value> = job
            .candidate
            .as_ref()
            .and_then(|candidate| candidate["metrics"].as_object().cloned())
            .unwrap_or_default();
        let rewards: Vec<f64> = manifest.train.iter().filter_map(|sample| sample.reward).collect();
        metrics.insert("samples".into(), json!(manifest.train.len()));
        metrics.insert("holdout_samples".into(), json!(manifest.holdout.len()));
        metrics.insert(
            "truncated_samples".into(),
            json!(manifest.train.iter().filter(|sample| sample.truncated).count()),
        );
        if !rewards.is_empty() {
            metrics.insert(
                "reward_mean".into(),
                json!(rewards.iter().sum::<f64>() / rewards.len() as f64),
            );
        }
        if let Some(verdict) = &job.verdict {
            metrics.insert("gate_outcome".into(), json!(verdict.outcome.as_str()));
            if let Some(seconds) = verdict.figures.get("seconds") {
                metrics.insert("gate_seconds".into(), seconds.clone());
            }
        }
        metrics.insert("staleness/lag_max".into(), json!(manifest.lag_max));
        metrics.insert("staleness/lag_mean".into(), json!(manifest.lag_mean));
        if let Some(instruction) = &manifest.instruction {
            let mut request = json!({"id": job.instruction});
            for key in ["text", "session", "release_id", "requires", "client"] {
                if !instruction[key].is_null() {
                    request[key] = instruction[key].clone();
                }
            }
            metrics.insert("training_request".into(), request);
        }
        metrics
    }

    /// The files of a release; `None` for one without any.
    pub(super) async fn files_of(&self, release: &ReleaseId) -> Result<Option<PathBuf>, LoopError> {
        let (publisher, release) = (self.inner.publisher.clone(), release.clone());
        self.blocking(move || {
            let repository = publisher.repository();
            if repository.describe(&release).map_err(PublishError::from)?.bytes == 0 {
                return Ok(None);
            }
            Ok(Some(repository.materialise(&release).map_err(PublishError::from)?))
        })
        .await
    }

    /// What there is of a release's training state.
    pub(super) async fn state_of(&self, release: &ReleaseId) -> Result<TrainingState, LoopError> {
        let (publisher, release) = (self.inner.publisher.clone(), release.clone());
        self.blocking(move || {
            let state = publisher.repository().training_state(&release);
            Ok(state.map_err(PublishError::from)?)
        })
        .await
    }

    /// The undecided candidate that the next step of this base goes on from.
    pub(super) fn carried(&self, job: &Job) -> Option<PathBuf> {
        let dir = self.carried_dir(job).join(job.base.as_str()).join("candidate");
        (self.inner.recipe.trainer.carry_undecided && dir.is_dir()).then_some(dir)
    }

    fn carried_dir(&self, job: &Job) -> PathBuf {
        self.inner.work.join("undecided").join(job.scenario.as_str())
    }

    /// Keeps a candidate that was not decided, and forgets an earlier one when something was.
    async fn carry(&self, job: &Job) -> Result<(), LoopError> {
        if !self.inner.recipe.trainer.carry_undecided || job.candidate.is_none() {
            return Ok(());
        }
        let kept = self.carried_dir(job);
        self.clear(&kept).await?;
        if job
            .verdict
            .as_ref()
            .is_none_or(|verdict| verdict.outcome != Outcome::Inconclusive)
        {
            return Ok(());
        }
        let (from, to) = (self.job_dir(job), kept.join(job.base.as_str()));
        self.blocking(move || {
            // A crash in between only means that the next step goes on from what is served.
            std::fs::create_dir_all(&kept)
                .and_then(|()| std::fs::rename(&from, &to))
                .map_err(|source| LoopError::Work {
                    path: to.clone(),
                    doing: "keeping an undecided candidate",
                    source,
                })
        })
        .await
    }

    pub(super) async fn discard(&self, job: &Job) -> Result<(), LoopError> {
        let dir = self.job_dir(job);
        self.clear(&dir).await
    }

    /// Removes files of steps that ended in a process which died before it could; the open step keeps its own.
    pub(super) async fn sweep(&self, scenario: &ScenarioName, open: Option<&Job>) -> Result<(), LoopError> {
        let (all, keep) = (
            self.inner.work.join(scenario.as_str()),
            open.map(|job| self.job_dir(job)),
        );
        let left = self
            .blocking(move || {
                let entries = match std::fs::read_dir(&all) {
                    Ok(entries) => entries,
                    Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
                    Err(source) => {
                        return Err(LoopError::Work {
                            path: all,
                            doing: "looking for files of steps that ended",
                            source,
                        });
                    }
                };
                Ok(entries
                    .filter_map(|entry| Some(entry.ok()?.path()))
                    .filter(|path| Some(path) != keep.as_ref() && folder::is_of_a_step(path))
                    .collect())
            })
            .await?;
        for dir in left {
            self.clear(&dir).await?;
        }
        Ok(())
    }

    pub(super) async fn clear(&self, dir: &Path) -> Result<(), LoopError> {
        let dir = dir.to_path_buf();
        self.blocking(move || match std::fs::remove_dir_all(&dir) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(LoopError::Work {
                path: dir,
                doing: "removing the files of a step",
                source,
            }),
            _ => Ok(()),
        })
        .await
    }
}

/// A step that releases nothing.
pub(super) struct Unreleased {
    pub(super) rejected: bool,
    pub(super) outcome: &'static str,
    pub(super) reason: String,
    pub(super) metrics: Map<String, Value>,
}

/// The seed of everything random in a step: from its batch, so that a repeated step is the same.
pub(super) fn seed_of(job: &Job) -> u64 {
    let digest = Sha256::digest(job.batch.as_str().as_bytes());
    let mut word = [0u8; 8];
    word.copy_from_slice(&digest[..8]);
    // JSON and TOML readers elsewhere may know only 53 bits.
    u64::from_be_bytes(word) >> 11
}

/// An error with its causes, in one line.
pub(super) fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let part = cause.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = cause.source();
    }
    text
}
